"""Engines that come and go, requests of every kind, and the truth about their answers.

An oracle run on an undisturbed engine says what each request has to become, token for token.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.annotated import Annotated, BackendOutput
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.stream import PATIENCE, Patience
from enginewire.backend.replay.retry import RetryPolicy
from tests.backend.asking import Heard
from tests.patience import PATIENCE_SECONDS

MOCKER = ("--engine", "mocker", "--mocker-itl-ms", "2")


class EngineSlot:
    """An address on which engine processes follow each other."""

    def __init__(self, socket: Path, arguments: Sequence[str] = MOCKER) -> None:
        self.target = f"unix:{socket}"
        self._command = [sys.executable, "-m", "enginewire.server", *arguments, "--uds", str(socket)]
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """A new engine process, perhaps not ready yet."""
        self.process = await asyncio.create_subprocess_exec(*self._command, "--log-level", "error")

    async def end(self, number: signal.Signals) -> int:
        """Signal the process and wait for its end; the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()


@contextlib.asynccontextmanager
async def engines(
    folder: Path, count: int, arguments: Sequence[str] = MOCKER
) -> AsyncIterator[list[EngineSlot]]:
    """`count` engine processes that are being started; none is left behind."""
    slots = [EngineSlot(folder / f"e{number}.sock", arguments) for number in range(count)]
    try:
        for slot in slots:
            await slot.start()
        yield slots
    finally:
        for slot in slots:
            if slot.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    slot.process.kill()
                await slot.process.wait()


@contextlib.asynccontextmanager
async def replaying(
    targets: Sequence[str],
    vocabulary: Vocabulary,
    *,
    multiplexed: bool = True,
    policy: RetryPolicy | None = None,
    patience: Patience = PATIENCE,
) -> AsyncIterator[Backend]:
    """A backend on all of these engines, once one is ready."""
    clients = [EngineClient(target, multiplexed=multiplexed, patience=patience) for target in targets]
    async with Endpoints(clients) as endpoints:
        await endpoints.wait_ready(PATIENCE_SECONDS)
        yield Backend(endpoints, vocabulary, retry=policy or RetryPolicy(recovery=PATIENCE_SECONDS))


def kinds_of_requests(
    prompt: Sequence[int], max_tokens: int, **more: object
) -> Iterator[pb.PreprocessedRequest]:
    """Greedy, seeded, with a floor, with log-probabilities, several choices; half of them with `more`."""
    everything: list[dict[str, object]] = [
        {},
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0.8, "seed": 8, **more},
        {"temperature": 1.0, "seed": 9, "n": 2},
        {"temperature": 1.0, "seed": 10, "top_p": 0.9, **more},
        {"temperature": 0.5, "seed": 11, "top_k": 20},
        {"temperature": 0.0, **more},
        {"n": 3, "temperature": 1.0, "seed": 13, **more},
    ]
    for number, options in enumerate(everything):
        request = pb.PreprocessedRequest(token_ids=[*prompt, 65 + number], sampling_options=options)
        request.stop_conditions.max_tokens = max_tokens
        request.stop_conditions.min_tokens = max_tokens // 2 if number % 2 else 0
        request.stop_conditions.ignore_eos = number % 3 == 0
        if number % 3 == 1:
            request.output_options.logprobs = 2
        yield request


async def hear_slowly(backend: Backend, request: pb.PreprocessedRequest, heard: Heard) -> Heard:
    """Everything, into `heard` as it comes."""
    async for item in backend.generate(request):
        heard.items.append(item)
    return heard


def answer_of(heard: Heard) -> dict[int, tuple[object, ...]]:
    """What must not depend on lost engines: per choice tokens, text, finish, log-probabilities; usage."""
    assert heard.failure is None, heard.failure
    finishes = heard.finishes()
    found: dict[int, tuple[object, ...]] = {
        index: (
            heard.token_ids(index),
            heard.text(index),
            finishes[index],
            *log_probs_of(heard.outputs, index),
        )
        for index in finishes
    }
    found[-1] = (heard.usage(), [], None)
    return found


def log_probs_of(outputs: Sequence[BackendOutput], index: int) -> tuple[list[float], float | None]:
    """Log-probabilities of the tokens of a choice, and their sum as it was told last."""
    own = [output for output in outputs if output.index == index]
    told = [output.cum_log_probs for output in own if output.cum_log_probs is not None]
    return [value for output in own for value in output.log_probs], round(told[-1], 4) if told else None


def migrations(heard: Heard) -> list[Annotated[BackendOutput]]:
    """The events that say another engine goes on."""
    return [item for item in heard.items if item.event == "migrated"]
