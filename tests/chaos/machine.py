"""Faults in any order, as hypothesis draws them; a schedule that breaks an answer is made short.

Requests begin, are left, engines are killed, frozen, thawed and drained, links are stalled and healed, cut
or falsified, certificates change. At the end of each schedule every request has to have been answered as
if nothing had happened.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.chaos.world import LINK_FAULTS, World, world

T = TypeVar("T")
NUM_ENGINES = 2
NUM_TALKING = 6
PATIENCE_SECONDS = 300.0
ENGINES = st.integers(0, NUM_ENGINES - 1)
DICE = st.integers(0, 2**32).map(random.Random)


class Stage:
    """One world for all schedules, on an event loop of its own. A context manager."""

    def __enter__(self) -> Stage:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._folder = tempfile.TemporaryDirectory(prefix="ew-")
        self.world = self.do(self._stack.enter_async_context(world(Path(self._folder.name), NUM_ENGINES)))
        self.num_schedules = 0
        return self

    def __exit__(self, *error: object) -> None:
        self.do(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._folder.cleanup()

    def do(self, work: Coroutine[object, object, T]) -> T:
        """Its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)


class Trouble(RuleBasedStateMachine):
    """One schedule. `stage` has to be there before."""

    stage: ClassVar[Stage]

    def __init__(self) -> None:
        super().__init__()
        self.world: World = self.stage.world
        self.frozen: set[int] = set()
        self.first = len(self.world.records)

    def _do(self, work: Coroutine[object, object, T]) -> T:
        return self.stage.do(work)

    def _keep_busy(self) -> None:
        """Faults that hit nobody show nothing. And of a request that is alone engines may really die."""
        self._do(self.world.talk(NUM_TALKING))

    @rule(kind=st.integers(0, 15))
    def ask(self, kind: int) -> None:
        self._do(self._ask(kind))

    async def _ask(self, kind: int) -> None:
        self.world.ask(kind % self.world.num_kinds)

    @rule(number=st.integers(0, 10))
    def leave(self, number: int) -> None:
        async def leave() -> None:
            if live := self.world.live:
                await self.world.leave(live[number % len(live)])

        self._do(leave())

    @precondition(lambda self: len(self.frozen) < NUM_ENGINES - 1)
    @rule(engine=ENGINES, dice=DICE, fault=st.sampled_from(("kill", "drain")))
    def lose(self, engine: int, dice: random.Random, fault: str) -> None:
        if engine not in self.frozen:
            self._keep_busy()
            self._do(self.world.strike(fault, self.world.engines[engine], dice))

    @precondition(lambda self: len(self.frozen) < NUM_ENGINES - 1)
    @rule(engine=ENGINES)
    def freeze(self, engine: int) -> None:
        self._keep_busy()
        self.frozen.add(engine)
        self.world.engines[engine].signal(signal.SIGSTOP)

    @rule(engine=ENGINES)
    def thaw(self, engine: int) -> None:
        self.frozen.discard(engine)
        self.world.engines[engine].signal(signal.SIGCONT)

    @precondition(lambda self: not self.frozen)
    @rule(engine=ENGINES, dice=DICE, fault=st.sampled_from(LINK_FAULTS))
    def disturb(self, engine: int, dice: random.Random, fault: str) -> None:
        self._keep_busy()
        self._do(self.world.strike(fault, self.world.engines[engine], dice))

    @rule()
    def rotate(self) -> None:
        self.world.certificates.rotate()

    @invariant()
    def nothing_is_wrong_so_far(self) -> None:
        """Each beginning of an answer is a beginning of the right one."""
        for record in self.world.records[self.first :]:
            if not record.task.done():
                assert record.beginning_fault(self.world.truth[record.kind]) == "", record.as_json()

    def teardown(self) -> None:
        """Everybody has been answered, and no engine holds anything any more."""
        for engine in sorted(self.frozen):
            self.world.engines[engine].signal(signal.SIGCONT)
        self._do(self.world.all_have_ended())
        assert self._do(self.world.is_idle())
        self.stage.num_schedules += 1
        for record in self.world.records[self.first :]:
            assert self.world.judge(record) == "", record.as_json()
