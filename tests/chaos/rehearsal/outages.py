"""A fault between a backend and its engine, while callers wait: with another engine to go on at, or not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import Failure
from tests.chaos.callers import channel
from tests.chaos.rehearsal.answers import Answer, ask, ask_all, requests
from tests.chaos.rehearsal.engines import FAULTS, Engines
from tests.chaos.rehearsal.servers import PATIENCE_SECONDS, backend, is_free, load_of, until


async def is_used(to: grpc.aio.Channel, target: str) -> bool:
    """The backend sends requests there."""
    before = (await load_of(target)).requests_finished
    await asyncio.gather(*(ask(to, request, Answer()) for request in requests(4)))
    return (await load_of(target)).requests_finished > before


async def tried(
    engines: Engines, to: grpc.aio.Channel, fault: str, truth: Sequence[Answer]
) -> dict[str, object]:
    """One fault, while everybody waits for tokens."""
    assert await until(partial(is_used, to, engines.targets[0]))
    answers = [Answer() for _ in truth]
    asking = await ask_all(to, answers)
    assert (await load_of(engines.targets[0])).running
    struck = time.monotonic()
    await FAULTS[fault](engines)
    with suppress(TimeoutError):
        await asyncio.wait_for(asking, 2 * PATIENCE_SECONDS)
    await engines.heal()
    # What the engine still says of them is nobody's answer, and nothing of it stays.
    assert await until(partial(is_free, engines.targets[0]))
    return {
        "fault": fault,
        "migrated": sum(answer.num_migrations for answer in answers),
        "longest_wait_s": round(max(answer.longest_wait(struck) for answer in answers), 1),
        "wrong": sum(answer.said() != right.said() for answer, right in zip(answers, truth, strict=True)),
    }


async def with_replay(engines: Engines, folder: Path, faults: Sequence[str]) -> list[dict[str, object]]:
    """Every fault, one after the other, with one backend."""
    targets = [f"--target={target}" for target in engines.targets]
    async with backend(folder, *targets) as at, channel(at) as to:
        truth = [Answer() for _ in requests()]
        await (await ask_all(to, truth))
        rows = []
        for fault in faults:
            rows.append(await tried(engines, to, fault, truth))
            print(json.dumps(rows[-1]), flush=True)
        return rows


async def without_replay(engines: Engines, folder: Path, fault: str) -> dict[str, object]:
    """The only engine is lost: how long until every caller is told, and what."""
    async with backend(folder, "--no-replay", "--target", engines.targets[0]) as at, channel(at) as to:
        answers = [Answer() for _ in requests()]
        asking = await ask_all(to, answers)
        struck = time.monotonic()
        await FAULTS[fault](engines)
        with suppress(TimeoutError):
            await asyncio.wait_for(asking, PATIENCE_SECONDS)
        told = time.monotonic() - struck
        await engines.heal()
    reasons = {_reason(answer) for answer in answers}
    row = {
        "fault": f"{fault}, without replay",
        "told_after_s": round(told, 1),
        "reasons": sorted(reasons),
        "wrong": sum(_reason(answer) != "ENGINE_DEAD, retryable" for answer in answers),
    }
    print(json.dumps(row), flush=True)
    return row


def _reason(answer: Answer) -> str:
    if answer.error is None:
        return "none"
    failure = Failure.from_proto(answer.error)
    name = pb.ErrorReason.Name(failure.reason).removeprefix("ERROR_REASON_")
    return f"{name}, {'retryable' if failure.retryable else 'final'}"
