"""The shapes in which one thing can be asked: one choice or several, by a call or over a multiplexed stream.

A rule that holds for one shape may be broken in another. A check that takes its shape as a parameter is
registered once for each: `USE-06`, `USE-06/choices`, `USE-06/multiplexed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import check
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.multiplexed import Handle
from enginewire.conformance.wire.stream import Choice, Stream, choices_of
from enginewire.conformance.wire.violation import NotApplicable, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`name` is the variant of its checks, `gate` what has to be declared, `needs` what it relies on."""

    name: str = ""
    gate: str = ""
    needs: tuple[str, ...] = ()
    choices: int = 1
    is_multiplexed: bool = False


PLAIN: Final = Shape()
CHOICES: Final = Shape(name="choices", gate="multiple_choices", needs=("SEQ-01", "SEQ-02"), choices=2)
MULTIPLEXED: Final = Shape(name="multiplexed", gate="multiplexed", needs=("MUX-01",), is_multiplexed=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came for one request that was served, in any shape."""

    received: Stream | Handle

    @property
    def outputs(self) -> Sequence[pb.LLMEngineOutput]:
        """All of them, in order."""
        return self.received.outputs

    @property
    def events(self) -> Sequence[pb.EngineEvent]:
        """All of them, in order."""
        return self.received.events

    @property
    def usage(self) -> pb.CompletionUsage:
        """Of the whole request."""
        return self.received.usage

    @property
    def choices(self) -> dict[int, Choice]:
        """The outputs of each choice."""
        return choices_of(self.outputs)

    @property
    def choice(self) -> Choice:
        """Choice 0, empty when nothing came."""
        return self.choices.get(0, Choice(0))


Shaped = Callable[[Context, Shape], Awaitable[None]]


def check_in(
    identifier: str,
    *shapes: Shape,
    needs: tuple[str, ...] = (),
    gate: str = "",
    alone: bool = False,
    counts_prompt: bool = False,
    in_company: bool = True,
    not_beside: tuple[str, ...] = (),
) -> Callable[[Shaped], Shaped]:
    """Register one function as a check of each shape. Those but PLAIN rely on the plain one, where it is."""

    def register(function: Shaped) -> Shaped:
        for shape in shapes:
            base = (identifier,) if shape is not PLAIN else ()
            relied = tuple(dict.fromkeys((*needs, *base, *shape.needs)))
            add = check(
                identifier,
                variant=shape.name,
                needs=relied,
                gate=gate or shape.gate,
                alone=alone or shape.is_multiplexed,
                counts_prompt=counts_prompt,
                in_company=in_company,
                not_beside=not_beside,
            )
            add(_bound(function, shape))
        return function

    return register


async def ask(ctx: Context, shape: Shape, request: pb.GenerateRequest) -> Answer:
    """The answer to a request in this shape, which has to succeed; a failure is a Violation."""
    if shape.gate and not getattr(ctx.capabilities, shape.gate):
        raise NotApplicable(f"Capabilities.{shape.gate} is not advertised")
    if shape.choices > 1:
        if ctx.choices(shape.choices) < shape.choices:
            raise NotApplicable(f"Limits.max_n is below {shape.choices}")
        request = requests.change(request, n=shape.choices)
    if not shape.is_multiplexed:
        return Answer(await ctx.generate(request))
    async with open_stream(ctx) as stream:
        stream.submit(1, request)
        await stream.until_ended(1)
        handle = stream.handle(1)
        if handle.status is not None:
            raise Violation("a valid multiplexed request failed", expected="OK", seen=handle.status)
        return Answer(handle)


def _bound(function: Shaped, shape: Shape) -> Callable[[Context], Awaitable[None]]:
    async def judge(ctx: Context) -> None:
        await function(ctx, shape)

    judge.__name__, judge.__doc__, judge.__module__ = (
        function.__name__,
        function.__doc__,
        function.__module__,
    )
    return judge
