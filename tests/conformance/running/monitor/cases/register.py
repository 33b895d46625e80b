"""Exchanges that each break one invariant, and nothing that it stands on, by the name of the invariant."""

from __future__ import annotations

from collections.abc import Callable

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.running.monitor.made import INFO, generated, outputs, request

Facts = pb.GetEngineInfoResponse
Broken = tuple[Exchange, Facts]
Change = Callable[[list[pb.LLMEngineOutput]], object]
CASES: dict[str, list[tuple[str, Callable[[], Broken]]]] = {}
"""By the name of the invariant: what is wrong in words, and the exchange."""

STOP, CANCELLED = pb.FINISH_REASON_STOP, pb.FINISH_REASON_CANCELLED
TWO = ((11, 12, 13, 14), (21, 22, 23, 24))
NOTE = pb.EngineEvent(event="made.note")
RESUMED = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[8, 9])])


def breaks(invariant: str, wrong: str) -> Callable[[Callable[[], Exchange | Broken]], None]:
    """Register an exchange that breaks an invariant."""

    def register(make: Callable[[], Exchange | Broken]) -> None:
        def made() -> Broken:
            exchange = make()
            return exchange if isinstance(exchange, tuple) else (exchange, INFO)

        CASES.setdefault(invariant, []).append((wrong, made))

    return register


def of_life(name: str) -> Facts:
    """The facts of an engine that says which life it is in."""
    info = pb.GetEngineInfoResponse()
    info.CopyFrom(INFO)
    info.engine_lifetime_id = name
    return info


def output(invariant: str, wrong: str, change: Change, tokens: object = None, **asked: object) -> None:
    """Register an answer in which the outputs of a correct one are changed."""
    reasons = asked.pop("reasons", ())
    run = asked.pop("run", 1)

    def make() -> Exchange:
        one = request(**asked)
        ids = tokens or (TWO if one.request.sampling_options.n > 1 else TWO[:1])
        made = outputs(one, ids, reasons, run)  # type: ignore[arg-type]  # as the caller gives them
        change(made)
        return generated(one, made)

    breaks(invariant, wrong)(make)


def last(change: Callable[[pb.LLMEngineOutput], object]) -> Change:
    """Of the last output."""
    return lambda made: change(made[-1])


def put(name: str, value: object, number: int = -1) -> Change:
    """A field of one output has another value."""
    return lambda made: setattr(made[number], name, value)
