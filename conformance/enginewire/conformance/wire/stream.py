"""What a Generate answered, in the terms of the contract: choices, terminals, usage.

Reads a recorded call; tokens count up to the terminal of their choice, so that what follows it is the
business of STR-03 alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, cast

from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.violation import Violation


class Running(Protocol):
    """A Generate on whichever way: what `Call` says of itself."""

    exchange: Exchange

    def __aiter__(self) -> Running: ...

    async def __anext__(self) -> Message: ...

    async def accepted(self) -> bool:
        """Wait for the acceptance; False when there is none."""

    async def failed_unread(self) -> bool:
        """Whether it has ended with another status than OK."""

    async def finish(self) -> Exchange:
        """Read to the end."""

    def cancel(self) -> None:
        """Cancel it as a caller that goes away would."""


@dataclass(slots=True)
class Choice:
    """One choice: its outputs up to its first terminal with all their token ids, and what came after it."""

    index: int
    outputs: list[pb.LLMEngineOutput] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    late: list[pb.LLMEngineOutput] = field(default_factory=list)

    @property
    def terminal(self) -> pb.LLMEngineOutput | None:
        """The first output with a finish_reason."""
        return self.outputs[-1] if self.outputs and self.outputs[-1].finish_reason else None

    @property
    def finish_reason(self) -> pb.FinishReason.ValueType:
        """Why the choice ended; UNSPECIFIED when it did not."""
        return self.terminal.finish_reason if self.terminal else pb.FINISH_REASON_UNSPECIFIED

    @property
    def reason_name(self) -> str:
        """The finish reason for a human."""
        return reason_name(self.finish_reason)

    def add(self, output: pb.LLMEngineOutput) -> None:
        """Take the next output of this choice."""
        if self.terminal:
            self.late.append(output)
        else:
            self.outputs.append(output)
            self.tokens.extend(output.token_ids)


def choices_of(outputs: Iterable[pb.LLMEngineOutput]) -> dict[int, Choice]:
    """The outputs of each choice."""
    choices: dict[int, Choice] = {}
    for output in outputs:
        index = output.index
        if (choice := choices.get(index)) is None:
            choice = choices[index] = Choice(index)
        choice.add(output)
    return choices


def num_choices(request: pb.PreprocessedRequest) -> int:
    """How many choices a request asks for."""
    return max(request.sampling_options.n, 1)


class Stream:
    """A Generate under way or ended."""

    def __init__(self, request: pb.GenerateRequest, call: Running) -> None:
        self.request = request
        self.call = call

    @property
    def exchange(self) -> Exchange:
        """The recorded RPC."""
        return self.call.exchange

    @property
    def responses(self) -> list[pb.GenerateResponse]:
        """All messages so far."""
        return cast(list[pb.GenerateResponse], self.exchange.messages)

    @property
    def outputs(self) -> list[pb.LLMEngineOutput]:
        """All outputs so far."""
        return [response.output for response in self.responses if not response.HasField("engine_event")]

    @property
    def events(self) -> list[pb.EngineEvent]:
        """All events so far."""
        return [response.engine_event for response in self.responses if response.HasField("engine_event")]

    @property
    def choices(self) -> dict[int, Choice]:
        """What came so far, by choice."""
        return choices_of(self.outputs)

    @property
    def choice(self) -> Choice:
        """Choice 0, empty when nothing came."""
        return self.choices.get(0, Choice(0))

    @property
    def tokens(self) -> list[int]:
        """Token ids of choice 0 up to its terminal."""
        return self.choice.tokens

    @property
    def terminals(self) -> list[pb.LLMEngineOutput]:
        """All outputs with a finish_reason, in order."""
        return [output for output in self.outputs if output.finish_reason]

    @property
    def usage(self) -> pb.CompletionUsage:
        """The usage on the last terminal that has one; absent is a Violation."""
        for output in reversed(self.terminals):
            if output.HasField("completion_usage"):
                return output.completion_usage
        raise Violation("no terminal output carries completion_usage", seen=self.exchange.status)

    async def accepted(self) -> Stream:
        """Wait until the server accepted the request; a refusal is a Violation."""
        if not await self.call.accepted():
            await self.call.finish()
            raise Violation("the request was not accepted", seen=self.exchange.status)
        return self

    async def first_token(self) -> Stream:
        """Read until a token came; an end before it is a Violation."""
        return await self.more(1)

    async def more(self, count: int) -> Stream:
        """Read until choice 0 has at least `count` tokens; an end before that is a Violation."""
        while (missing := count - len(self.tokens)) > 0:
            # All choices together have at least as many: only then is it worth a look.
            while missing > 0:
                message = await anext(self.call, None)
                if message is None:
                    raise Violation(f"the stream ended before token {count}", seen=self.exchange.status)
                missing -= len(cast(pb.GenerateResponse, message).output.token_ids)
        return self

    async def end(self) -> Stream:
        """Read to the status, whatever it is."""
        await self.call.finish()
        return self

    async def ok(self) -> Stream:
        """Read to the status; another than OK is a Violation."""
        await self.call.finish()
        if not self.exchange.is_ok:
            raise Violation("a valid request failed", expected="OK", seen=self.exchange.status)
        return self

    def cancel(self) -> None:
        """Cancel the call."""
        self.call.cancel()


def reason_name(reason: int) -> str:
    """LENGTH for FINISH_REASON_LENGTH; the number for values that the contract does not name."""
    if reason not in pb.FinishReason.values():
        return str(reason)
    return pb.FinishReason.Name(cast(pb.FinishReason.ValueType, reason)).removeprefix("FINISH_REASON_")
