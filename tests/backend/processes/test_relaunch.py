"""When an engine server that died is started again."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from enginewire.backend.processes.engine_output import EngineOutput
from enginewire.backend.processes.relaunch import Launch, RestartPolicy
from enginewire.backend.processes.sidecar import Sidecar, SidecarDied, sidecar
from tests.backend.our_processes import is_alive
from tests.backend.processes.test_sidecar import FOR_EVER, Shown, program

QUICK = RestartPolicy(shortest_pause=0.01, longest_pause=0.02)
DIES = program("import os", "os._exit(3)")


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Programs that stand for the lives of an engine server; the last one stands for all that follow."""
    programs: list[tuple[str, list[str]]] = []

    @asynccontextmanager
    async def engine_on(
        socket: Path, arguments: Sequence[str], output: EngineOutput
    ) -> AsyncIterator[Sidecar]:
        module, given = programs.pop(0) if len(programs) > 1 else programs[0]
        async with sidecar(module, given, name="it", show=output.show, stop_timeout=1.0) as running:
            yield running

    monkeypatch.setattr("enginewire.backend.processes.relaunch.engine_on", engine_on)
    return programs


def launch(show: Shown, policy: RestartPolicy = QUICK) -> Launch:
    launched = Launch([], policy, EngineOutput(Stream(show)))
    launched.ready()
    return launched


class Stream(io.StringIO):
    """What is written to it is shown."""

    def __init__(self, show: Shown) -> None:
        super().__init__()
        self._shown = show

    def write(self, text: str) -> int:
        self._shown(text)
        return len(text)


async def test_the_work_goes_on_while_its_engine_is_started_again(lives) -> None:
    lives += [DIES, DIES, FOR_EVER]
    shown = Shown()
    targets = []

    async def work(target: str) -> int:
        targets.append(target)
        await shown.until("up")
        return 7

    assert await launch(shown).run(work) == 7
    assert len(targets) == 1
    assert shown.text.count("it ended with exit code 3; it is started again\n") == 2


async def test_quick_deaths_in_a_row_are_given_up_and_the_work_with_them(lives) -> None:
    lives.append(DIES)
    shown, is_over = Shown(), asyncio.Event()

    async def work(target: str) -> int:
        try:
            await asyncio.sleep(60)
        finally:
            is_over.set()
        return 0

    with pytest.raises(
        SidecarDied, match="it, given up at its death number 5 in a row, ended with exit code 3"
    ):
        await launch(shown).run(work)
    assert is_over.is_set()
    assert shown.text.count("it is started again") == 4


async def test_work_that_ends_in_the_pause_needs_no_other_life(lives) -> None:
    lives += [DIES, FOR_EVER, FOR_EVER]
    shown = Shown()

    async def work(target: str) -> int:
        await shown.until("it is started again")
        return 0

    assert await launch(shown, RestartPolicy(shortest_pause=60, longest_pause=60)).run(work) == 0
    assert len(lives) == 2


async def test_work_that_fails_in_the_pause_may_have_failed_of_the_death(lives) -> None:
    lives += [DIES, FOR_EVER, FOR_EVER]
    shown = Shown()

    async def work(target: str) -> int:
        await shown.until("it is started again")
        return 1

    with pytest.raises(SidecarDied, match=r"^it ended with exit code 3"):
        await launch(shown, RestartPolicy(shortest_pause=60, longest_pause=60)).run(work)


async def test_deaths_after_a_long_life_are_not_counted(lives) -> None:
    lives += [DIES] * 6 + [FOR_EVER]
    shown = Shown()

    async def work(target: str) -> int:
        await shown.until("up")
        return 0

    policy = RestartPolicy(long_life=0.0, shortest_pause=0.01)
    assert await launch(shown, policy).run(work) == 0


async def test_an_engine_that_was_never_ready_is_not_started_again(lives) -> None:
    lives += [DIES, FOR_EVER]
    launched = Launch([], QUICK, EngineOutput(None))
    with pytest.raises(SidecarDied, match=r"^it ended with exit code 3"):
        await launched.run(lambda target: asyncio.sleep(60, 0))


async def test_a_death_that_comes_with_a_failed_answer_is_its_reason(
    lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until it comes: on a busy machine a process takes its time to end.
    monkeypatch.setattr("enginewire.backend.processes.relaunch.DEATH_NOTICE_SECONDS", 60)
    lives.append(program("import os, time", "print('up', flush=True)", "time.sleep(0.1)", "os._exit(3)"))
    shown = Shown()

    async def work(target: str) -> int:
        await shown.until("up")
        return 1

    with pytest.raises(SidecarDied, match=r"^it ended with exit code 3"):
        await launch(shown).run(work)


async def test_a_cancelled_work_ends_before_its_engine(lives) -> None:
    lives.append(program("import os, time", "print(os.getpid(), 'up', flush=True)", "time.sleep(60)"))
    shown = Shown()
    was_alive: list[bool] = []

    async def work(target: str) -> int:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            was_alive.append(is_alive(int(shown.text.split()[0])))
        return 0

    async def run() -> None:
        await launch(shown).run(work)

    running = asyncio.create_task(run())
    await shown.until("up")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert was_alive == [True]
    assert not is_alive(int(shown.text.split()[0]))


def test_pauses_grow_up_to_a_limit() -> None:
    policy = RestartPolicy(shortest_pause=0.1, longest_pause=0.5)
    assert [policy.pause(count) for count in range(5)] == [0.1, 0.1, 0.2, 0.4, 0.5]
