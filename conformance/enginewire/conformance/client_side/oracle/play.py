"""Stages cases: the engine says what they say, and the backend is asked. Judges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.answer import Answer
from enginewire.conformance.client_side.context import ClientContext
from enginewire.conformance.client_side.oracle.case import Case
from enginewire.conformance.client_side.oracle.predict import outputs, predict
from enginewire.conformance.client_side.stage.script import DIED, Fail, Say, Stay, Step
from enginewire.conformance.client_side.stage.turn import Scene, Turn
from enginewire.conformance.wire.exchange import Exchange

TOGETHER: Final = 16


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a case. `is_left`: the backend ended the call of an engine that did not."""

    case: Case
    scene: Scene
    answer: Answer
    is_left: bool

    @property
    def turns(self) -> Sequence[Turn]:
        """The calls of the backend."""
        return self.scene.turns

    @property
    def exchanges(self) -> list[Exchange]:
        """The calls of both sides."""
        return [self.answer.exchange, *(turn.exchange for turn in self.turns)]


class Stage:
    """A backend per tokenizer, of one run."""

    def __init__(self, contexts: Mapping[bool, ClientContext]) -> None:
        """`contexts`: by whether the tokenizer is the spaced one."""
        self._contexts = contexts
        self._slots = asyncio.Semaphore(TOGETHER)

    async def play(self, case: Case) -> Played:
        """Ask for this case, beside others."""
        async with self._slots:
            ctx = self._contexts[case.spaced]
            first, *others = scripts(case)
            scene = ctx.play(*first, then=others, ending=case.prompt)
            answer = ctx.start(scene, timeout=ctx.patience, **case.changes)  # type: ignore[arg-type]  # fields
            await answer.call.finish()
        is_left = not case.waits or await _is_left(scene, ctx.bounds.answer)
        return Played(case, scene, answer, is_left)

    async def close(self) -> None:
        """Nothing is left running."""
        for ctx in self._contexts.values():
            await ctx.close()


async def _is_left(scene: Scene, within: float) -> bool:
    """The backend leaves the engine's call in that time."""
    if not scene.turns:
        return False
    left = scene.turns[-1].left
    with suppress(TimeoutError):
        await asyncio.wait_for(left.wait(), within)
    return left.is_set()


def scripts(case: Case) -> list[list[Step]]:
    """What the engine says, for each attempt."""
    says = [_say(case, place) for place in range(len(outputs(case)))]
    full = Fail(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        pb.ERROR_REASON_QUEUE_FULL,
        retryable=True,
        retry_after_ms=case.retry_after_ms,
    )
    refused: list[list[Step]] = [[full] for _ in range(case.refusals)]
    if case.waits:
        return [*refused, [*(replace(say, finish=0) for say in says if say.pieces), Stay()]]
    if case.lost is not None:
        return [*refused, [*says[: case.lost], DIED], _rest(case, case.lost)]
    if case.gap is not None:
        return [*refused, [*says, Stay()], _rest(replace(case, gap=None), case.gap)]
    if case.repeat is not None:
        return [*refused, [*says, Stay()]]
    return [*refused, [*says]]


def _rest(case: Case, lost: int) -> list[Step]:
    """What the next engine says of the choices that are open."""
    ended = {index for index, due in enumerate(predict(case)) if due.message < lost}
    rest = [_say(case, place) for place in range(lost, len(outputs(case)))]
    return [say for say in rest if say.index not in ended]


def _say(case: Case, place: int) -> Say:
    """One output of the engine."""
    sent = outputs(case)
    index, count, is_last = sent[place]
    before = sum(size for other, size, _ in sent[:place] if other == index)
    tokens, end = case.tokens[index], case.ends[index]
    moved = {case.gap: before + 1, case.repeat: before - 1}
    return Say(
        tokens[before : before + count],
        finish=pb.FinishReason.Value(f"FINISH_REASON_{end}") if is_last else 0,
        index=index,
        position=moved.get(place),
        row=[value(position) for position in range(before, before + count)] if case.logprobs else (),
        stop_token=tokens[-1] if is_last and end == "STOP" else None,
        error="scripted" if is_last and end == "ERROR" else "",
    )


def value(position: int) -> float:
    """The log-probability of the token at a position, exact in any float."""
    return -0.125 * (position + 1)
