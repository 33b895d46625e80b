"""The life of the server: starting, ready, draining, stopped, dead; and the one drain.

Holds the state that health, GetLoad and admission agree on. Knows nothing about gRPC or sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from enginewire import v1 as pb
from enginewire.server.admission.table import RequestTable
from enginewire.server.engines.calls import answer_of, returned, returned_within
from enginewire.server.engines.config_check import check_config
from enginewire.server.engines.interface import MetricsContext, StepEngine
from enginewire.server.failures import Draining, EngineDead, NotStarted, Stuck

log = logging.getLogger(__name__)

# Engines answer an abort within a step; a step that takes longer than this is not worth waiting for.
CANCEL_GRACE_SECONDS = 2.0
# Longer than the torch engine waits for its last step, shorter than supervisors wait before they kill.
CLEANUP_SECONDS = 15.0
PROGRESS_SECONDS = 0.1
TRANSFER_SECONDS = 0.02
DEFAULT_RETRY_SECONDS = 1.0
NOT_YET_DRAINING = frozenset({pb.ENGINE_STATE_STARTING, pb.ENGINE_STATE_READY})


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """How long running requests and late arrivals have, in seconds."""

    deadline: float
    admission_grace: float


class CleanupState(StrEnum):
    """How far the release of the engine is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Lifecycle:
    """State of one server and its engine."""

    def __init__(
        self,
        engine: StepEngine,
        requests: RequestTable,
        default_plan: DrainPlan,
        metrics: MetricsContext | None = None,
    ) -> None:
        """`metrics` is for the engine, which adds its own; the model is filled in."""
        self.engine = engine
        self.requests = requests
        self.default_plan = default_plan
        self._metrics = metrics or MetricsContext(model="")
        self.state: pb.EngineState.ValueType = pb.ENGINE_STATE_STARTING
        self.config: pb.EngineConfig | None = None
        self.drain_state: pb.DrainState.ValueType = pb.DRAIN_STATE_UNSPECIFIED
        self._state_changed = asyncio.Condition()
        self._drain: asyncio.Task[None] | None = None
        self._drain_deadline = float("inf")
        self._deadline_moved = asyncio.Event()
        self._cleans_up = False
        self._release: asyncio.Task[None] | None = None
        self.cleanup_state: CleanupState | None = None
        self._load_has_failed = False
        self._no_start_runs = asyncio.Event()
        self._no_start_runs.set()

    async def start(
        self, worker_id: int, advertise: Callable[[pb.EngineConfig], None] = lambda config: None
    ) -> pb.EngineConfig:
        """Start the engine, then admit requests, unless a drain or cleanup came first.

        `advertise` completes the engine's config before anyone sees it.
        """
        if self._release is not None:
            raise EngineDead("the engine was cleaned up before it started")
        self._no_start_runs.clear()
        try:
            config = await answer_of("start", lambda: self.engine.start(worker_id))
            check_config(config, self.engine)
            advertise(config)
            metrics = replace(self._metrics, model=config.served_model_name or config.model)
            bindings = await answer_of("setup_metrics", lambda: self.engine.setup_metrics(metrics))
        finally:
            self._no_start_runs.set()
        config.metrics_ranks[:] = bindings.dp_ranks or config.metrics_ranks
        self.config = config
        if self.state == pb.ENGINE_STATE_STARTING:
            self.requests.open(self.engine, self.config)
            await self._become(pb.ENGINE_STATE_READY)
        return self.config

    @property
    def is_released(self) -> bool:
        """The engine's own clean-up went well."""
        return self.cleanup_state is CleanupState.DONE

    def engine_config(self) -> pb.EngineConfig:
        """What the engine said at start. Raises NotStarted before that."""
        if self.config is None:
            raise NotStarted("the engine is still starting", retry_after=DEFAULT_RETRY_SECONDS)
        return self.config

    def load(self) -> pb.Load:
        """The engine's load with the server's state."""
        load = pb.Load() if self.config is None else self.engine.load()
        self.requests.turns.add_to(load)
        load.state = self.state
        return load

    async def wait_state_change(self, seen: pb.EngineState.ValueType) -> pb.EngineState.ValueType:
        """The state as soon as it differs from `seen`."""
        async with self._state_changed:
            await self._state_changed.wait_for(lambda: self.state != seen)
            return self.state

    async def drain(self, plan: DrainPlan | None = None) -> AsyncIterator[pb.DrainResponse]:
        """Begin or join the one drain; yields progress, last a final state."""
        drain = self.begin_drain(plan or self.default_plan)
        last: pb.DrainResponse | None = None
        while not drain.done():
            progress = self._progress()
            if progress != last:
                yield progress
                last = progress
            await asyncio.wait([drain], timeout=PROGRESS_SECONDS)
        await drain
        yield self._progress()

    def begin_drain(self, plan: DrainPlan) -> asyncio.Task[None]:
        """The running drain, or a new one. Of two deadlines the earlier wins."""
        deadline = time.monotonic() + plan.deadline
        if deadline < self._drain_deadline:
            self._drain_deadline = deadline
            self._deadline_moved.set()
        if self._drain is None:
            self._drain = asyncio.create_task(self._run_drain(plan), name="drain")
        return self._drain

    async def cleanup(self, *, abort_in_flight: bool) -> bool:
        """Release the engine once; returns True when that had happened before.

        It ends, and so does the life of the engine, whatever the engine's own clean-up does; `is_released`
        says whether that went well. Who stops waiting for it does not stop it.
        """
        if self.state == pb.ENGINE_STATE_STOPPED:
            return True
        self._cleans_up = True
        self.requests.close(_cleaned_up)
        if self.state in NOT_YET_DRAINING:
            await self._become(pb.ENGINE_STATE_DRAINING)
        # A cleanup may not run beside a start.
        await self._no_start_runs.wait()
        # Not behind a lock: who aborts must not wait for another who does not.
        await self._empty(abort_in_flight)
        had_begun = self._release is not None
        if self._release is None:
            self._release = asyncio.create_task(self._release_engine(), name="cleanup")
        await asyncio.shield(self._release)
        return had_begun

    async def _release_engine(self) -> None:
        self.cleanup_state = CleanupState.RUNNING
        went_well = await returned_within(CLEANUP_SECONDS, "cleanup", self.engine.cleanup)
        self.cleanup_state = CleanupState.DONE if went_well else CleanupState.FAILED
        await self._become(pb.ENGINE_STATE_STOPPED)

    async def declare_dead(self, seconds: float) -> None:
        """Nothing more comes from the engine: a step is stuck, or it has died, and `seconds` is infinite."""
        self.requests.close(lambda: EngineDead("the engine is dead"))
        await self._become(pb.ENGINE_STATE_DEAD)
        if seconds == math.inf:
            self.requests.fail_all(lambda: EngineDead("the engine died"))
        else:
            self.requests.fail_all(lambda: Stuck(f"the engine made no progress for {seconds:.0f} s"))

    async def _run_drain(self, plan: DrainPlan) -> None:
        self.drain_state = pb.DRAIN_STATE_GRACE
        if self.state in NOT_YET_DRAINING:
            await self._become(pb.ENGINE_STATE_DRAINING)
        await self._grace(plan.admission_grace)
        self.drain_state = pb.DRAIN_STATE_DRAINING
        drains_engine = self.state == pb.ENGINE_STATE_DRAINING and self.config is not None
        # Behind a cleanup it is that which newcomers are told of.
        if self.state == pb.ENGINE_STATE_DRAINING and not self._cleans_up:
            self.requests.close(_draining)
        finished = await self._idle_before_deadline(drains_engine=drains_engine)
        if not finished:
            await self._empty(abort_in_flight=True)
        self.drain_state = pb.DRAIN_STATE_DRAINED if finished else pb.DRAIN_STATE_TIMED_OUT

    async def _grace(self, seconds: float) -> None:
        """Wait, but not beyond the deadline, which a second drain may move forward."""
        end = time.monotonic() + seconds
        while (left := min(end, self._drain_deadline) - time.monotonic()) > 0:
            self._deadline_moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._deadline_moved.wait()

    async def _idle_before_deadline(self, *, drains_engine: bool) -> bool:
        """True when the last request ended before the deadline, which a second drain may move forward."""
        idle = asyncio.create_task(self._drain_to_idle(drains_engine=drains_engine))
        try:
            # Once around at least: with no time at all what is idle is still drained, not timed out.
            await asyncio.sleep(0)
            while not idle.done() and (left := self._drain_deadline - time.monotonic()) > 0:
                self._deadline_moved.clear()
                moved = asyncio.ensure_future(self._deadline_moved.wait())
                await asyncio.wait([idle, moved], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
            return idle.done()
        finally:
            idle.cancel()

    async def _drain_to_idle(self, *, drains_engine: bool) -> None:
        """Return when the engine has drained, no request is in it and no hand-off waits for another one."""
        if drains_engine:
            self.requests.hand_back(_draining)
            await self._drain_engine()
        await self.requests.wait_idle()
        while self._num_pending_transfers:  # noqa: ASYNC110  # an engine has no event for it
            await asyncio.sleep(TRANSFER_SECONDS)

    async def _drain_engine(self) -> None:
        try:
            await returned("drain", self.engine.drain)
        except asyncio.CancelledError:
            log.error("the engine's drain did not end before the deadline; going on without it")
            raise

    @property
    def _num_pending_transfers(self) -> int:
        return self.known_load().pending_transfers

    def known_load(self) -> pb.Load:
        """The load, empty for an engine that cannot tell it: that is no reason not to end."""
        try:
            return self.load()
        except Exception:  # the outermost boundary of a call into foreign code
            if not self._load_has_failed:
                log.exception("the engine's load failed; going on without it")
            self._load_has_failed = True
            return pb.Load(state=self.state)

    async def _empty(self, abort_in_flight: bool) -> None:
        """Return when no request is in the engine; those that do not react to an abort are failed."""
        if not abort_in_flight:
            await self.requests.wait_idle()
            return
        await self.requests.abort_all("server shutdown")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_GRACE_SECONDS):
                await self.requests.wait_idle()
        self.requests.fail_all(_draining)

    async def _become(self, state: pb.EngineState.ValueType) -> None:
        async with self._state_changed:
            self.state = state
            self._state_changed.notify_all()

    def _progress(self) -> pb.DrainResponse:
        load = self.known_load()
        return pb.DrainResponse(
            state=self.drain_state or pb.DRAIN_STATE_GRACE,
            running=load.running,
            waiting=load.waiting,
            pending_transfers=load.pending_transfers,
        )


def _cleaned_up() -> EngineDead:
    return EngineDead("the engine was cleaned up")


def _draining() -> Draining:
    return Draining("the server is draining", retry_after=DEFAULT_RETRY_SECONDS)
