"""What happens to the pods while callers ask, and what became of both."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from openai import AsyncOpenAI, OpenAIError

from tests.deploy.rollout.callers import NUM_CALLERS, answered, callers
from tests.deploy.rollout.cluster import LOOK_SECONDS, PORT, Cluster
from tests.deploy.rollout.pod import Ending
from tests.patience import PATIENCE_SECONDS

Row = dict[str, Any]
# Takes longer than any drain.
ENDLESS_TOKENS: Final = 60_000


async def killed(cluster: Cluster) -> Row:
    """The engine of a pod is killed, as when memory is short, and again, and then is away for a while."""
    pod = cluster.pods[0]
    engine, backend = pod.containers
    async with callers(cluster.service.target) as counts:
        await _more_answers(counts)
        engine.kill()
        await _until(lambda: engine.num_restarts == 1)
        await _more_answers(counts)
        engine.kill()
        struck = time.monotonic()
        await _until(lambda: not pod.is_ready)
        gone = time.monotonic() - struck
        await _until(lambda: pod.is_ready)
        back = time.monotonic() - struck
        await _more_answers(counts)
    times: Row = {"not_ready_after_s": round(gone, 1), "ready_again_after_s": round(back, 1)}
    wrong = (engine.num_restarts, backend.num_restarts) != (2, 0)
    engine.num_restarts = 0
    return times | _said(counts) | {"wrong": wrong}


async def replaced(cluster: Cluster) -> Row:
    """All pods, one after the other, as for a new image."""
    pods = [*cluster.pods]
    async with callers(cluster.service.target) as counts:
        await _more_answers(counts)
        endings = await cluster.replace_all()
        await _more_answers(counts)
    pods += cluster.pods
    wrong = any(each.num_restarts for pod in pods for each in pod.containers)
    return _said(counts) | _ended(endings) | {"wrong": wrong}


async def too_long(cluster: Cluster) -> Row:
    """All pods at once, one of them with an answer that takes longer than the drain may."""
    address = f"http://{cluster.pods[0].host}:{PORT}/v1"
    async with AsyncOpenAI(
        api_key="none", base_url=address, max_retries=0, timeout=2 * PATIENCE_SECONDS
    ) as client:
        asking = asyncio.create_task(answered(client, ENDLESS_TOKENS, is_streamed=True))
        await asyncio.sleep(2)
        endings = await asyncio.gather(*(cluster.delete(each) for each in [*cluster.pods]))
        (said,) = await asyncio.gather(asking, return_exceptions=True)
    return {"said": str(said)} | _ended(endings) | {"wrong": not isinstance(said, OpenAIError)}


SCENES: Final = {"killed": killed, "replaced": replaced, "too-long": too_long}


async def _more_answers(counts: Counter[str]) -> None:
    """Each caller has had a few more."""
    enough = counts["whole"] + 3 * NUM_CALLERS
    await _until(lambda: counts["whole"] >= enough)


async def _until(is_due: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_due():  # noqa: ASYNC110  # other processes
            await asyncio.sleep(LOOK_SECONDS)


def _said(counts: Counter[str]) -> Row:
    lost = {what: num for what, num in counts.items() if what.startswith("lost")}
    num_answers = counts["whole"] + sum(lost.values())
    return {
        "whole": counts["whole"],
        "lost": sum(lost.values()),
        "sent_again": counts["sent"] - num_answers,
    } | lost


def _ended(endings: Sequence[Ending]) -> Row:
    codes = {code for each in endings for code in each.exit_codes.values()}
    return {
        "ended_after_s": [round(each.seconds, 1) for each in endings],
        "killed": sum(each.was_killed for each in endings),
        "exit_codes": sorted(codes, key=str),
    }
