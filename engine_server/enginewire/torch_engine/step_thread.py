"""The one thread that ever enters torch: it loads, warms up and steps.

Commands reach it through a queue between two steps; what a step produced goes back to the event
loop in one hand-over. Knows nothing about protobuf requests or the model.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence as Seq
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from enginewire import v1 as pb
from enginewire.server.failures import EngineDead, EngineError
from enginewire.torch_engine.layers.kernels.library import (
    COMPILED_DTYPES,
    INT4,
    INT4_ROUNDING,
    OPS,
    PRODUCTS,
    Source,
    attention,
    begin_builds,
)
from enginewire.torch_engine.options import SMALLER_CACHES, TorchEngineOptions
from enginewire.torch_engine.requests.sequence import Request
from enginewire.torch_engine.scheduling.prefix_cache import CacheChange
from enginewire.torch_engine.work.outbox import CoreOutputs

if TYPE_CHECKING:
    from enginewire.torch_engine.core import EngineCore
    from enginewire.torch_engine.loading.warm_up import LoadedEngine

log = logging.getLogger(__name__)

STALL_FLOOR = 10.0
STALL_FACTOR = 20.0
"""A step may take this many times the slowest step expected, plus the floor in seconds, before it
counts as stalled: a swapping machine is slow, not dead."""

Command = Callable[["EngineCore"], None]
CacheListener = Callable[[Seq[CacheChange]], None]
HandedOverListener = Callable[[Request, memoryview], None]
Answer = TypeVar("Answer")


class LoadSnapshot(NamedTuple):
    """The state after a step: `load`, which is never changed, and `requests_added`, all the core has taken.

    `max_total_tokens` are those of the running sequences when they are as long as they may get; `concats`
    are `Scheduler.num_concats`.
    """

    load: pb.Load = pb.Load()
    requests_added: int = 0
    max_total_tokens: int = 0
    concats: tuple[int, ...] = (0, 0)
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


def only_counts(load: pb.Load) -> pb.Load:
    """The load of an engine that has ended: nothing is left, but what has been counted stays."""
    made = pb.Load()
    made.CopyFrom(load)
    for name in ("running", "waiting", "waiting_tokens", "kv_blocks_used", "kv_blocks_cached"):
        made.ClearField(name)
    return made


class StepThread:
    """Runs an engine core; every method may be called from any thread."""

    def __init__(
        self,
        options: TorchEngineOptions,
        loop: asyncio.AbstractEventLoop,
        listener: Callable[[CoreOutputs], None],
        cache_listener: CacheListener,
        handed_over_listener: HandedOverListener,
        progress: Callable[[str, float], None],
    ) -> None:
        """The listeners are called on `loop`, `progress` on the step thread."""
        self.snapshot = LoadSnapshot()
        self.loaded: asyncio.Future[LoadedEngine] = loop.create_future()
        self.is_dead = False
        self._options = options
        self._loop = loop
        self._listener = listener
        self._cache_listener = cache_listener
        self._handed_over_listener = handed_over_listener
        self._progress = progress
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._answers: list[Callable[[], None]] = []
        self._asked: set[asyncio.Future[Any]] = set()
        self._has_ended = False
        self._stopping = False
        self._step_started: float | None = None
        self._slowest_step = 0.0
        self._thread = threading.Thread(target=self._run, name="torch-step", daemon=True)

    def start(self) -> None:
        """Begin to load; `loaded` gets the result or the error."""
        self._thread.start()

    def post(self, command: Command) -> None:
        """Run `command` on the core before the next step."""
        self._commands.put(command)

    async def ask(self, question: Callable[[EngineCore], Answer]) -> Answer:
        """What `question` returns or raises as an EngineError; whatever it changed is published first.

        Raises EngineDead.
        """
        if self._has_ended:
            raise EngineDead("the engine is closed")
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._asked.add(answer)
        answer.add_done_callback(self._asked.discard)

        def reply(value: Answer) -> None:
            if not answer.done():
                answer.set_result(value)

        def refuse(error: EngineError) -> None:
            if not answer.done():
                answer.set_exception(error)

        def command(core: EngineCore) -> None:
            try:
                value = question(core)
            except EngineError as error:
                self._answers.append(partial(refuse, error))
            else:
                self._answers.append(partial(reply, value))

        self.post(command)
        return await answer

    def stop(self) -> None:
        """Cancel what is live, deliver it, and end the thread after the current step."""

        def end(core: EngineCore) -> None:
            self._stopping = True
            core.live.abort_each(core.live.contexts)

        if self.snapshot.load.kv_blocks_total == 0:  # still loading: there is no core to run commands
            self._stopping = True
        self.post(end)

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended; False when it has not within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stalled_for(self) -> float:
        """Seconds the current step is over its allowance; infinite once the thread has died."""
        if self.is_dead:
            return float("inf")
        started = self._step_started
        if started is None:
            return 0.0
        allowed = STALL_FLOOR + STALL_FACTOR * self._slowest_step
        return max(time.monotonic() - started - allowed, 0.0)

    def _run(self) -> None:
        try:
            engine = self._load()
        except Exception as error:  # noqa: BLE001  # whoever awaits `start` must hear of anything
            self._on_loop(self._fail, error)
            return
        self._slowest_step = engine.slowest_step
        self._publish(engine.core)
        self._on_loop(self._succeed, engine)
        try:
            self._serve(engine.core)
        except Exception:  # a bug of ours: every live request must still hear of its end
            log.critical("the step thread died", exc_info=True)
            self._die(engine.core)
        self._on_loop(self._refuse_asked)

    def _load(self) -> LoadedEngine:
        self._report("import", 0.0)
        if self._options.compile_kernels and self._options.device != "cuda":
            begin_builds(*_kernels(self._options))
        from enginewire.torch_engine.loading.load import load_engine

        self._report("import", 1.0)
        return load_engine(self._options, self._report)

    def _serve(self, core: EngineCore) -> None:
        while not self._stopping:
            self._take_commands(core, wait=not core.has_work)
            self._step_started = time.monotonic()
            core.step()
            self._step_started = None
            self._publish(core)
            self._deliver_changes(core)
            self._deliver(core.take_outputs())
            self._answer()

    def _take_commands(self, core: EngineCore, wait: bool) -> None:
        if wait:
            self._commands.get()(core)
        try:
            while True:
                self._commands.get_nowait()(core)
        except Empty:
            return

    def _die(self, core: EngineCore) -> None:
        self.is_dead = True
        self._take_commands(core, wait=False)
        load = only_counts(self.snapshot.load)
        self.snapshot = self.snapshot._replace(
            load=load, max_total_tokens=0, requests_added=core.counters.requests_added
        )
        failures = [(context, EngineDead("the engine died")) for context in core.live.contexts]
        self._deliver(CoreOutputs(core.counters.steps, failures=list(failures)))

    def _publish(self, core: EngineCore) -> None:
        scheduler, counters = core.scheduler, core.counters
        running = {sequence.request for sequence in scheduler.running}
        waiting = {sequence.request for sequence in scheduler.waiting} - running
        load = pb.Load(
            running=len(scheduler.running),
            waiting=len(_ids(waiting) - _ids(running)),
            waiting_tokens=sum(len(request.prompt_token_ids) for request in waiting),
            kv_blocks_used=scheduler.pool.num_used,
            kv_blocks_total=scheduler.pool.num_blocks,
            kv_blocks_cached=scheduler.pool.num_cached,
            step=counters.steps,
            preemptions=scheduler.num_preemptions,
            requests_finished=counters.requests_finished,
            tokens_generated=counters.tokens_generated,
        )
        self.snapshot = LoadSnapshot(
            load,
            requests_added=counters.requests_added,
            max_total_tokens=sum(each.request.stop.max_total_tokens for each in scheduler.running),
            concats=tuple(scheduler.num_concats.values()),
            prefix_cache_queries=scheduler.prefix_cache.num_queried_tokens,
            prefix_cache_hits=scheduler.prefix_cache.num_hit_tokens,
        )

    def _deliver(self, outputs: CoreOutputs) -> None:
        for request, payload in outputs.handed_over:
            self._on_loop(self._handed_over_listener, request, payload)
        if not outputs.is_empty:
            self._on_loop(self._listener, outputs)

    def _deliver_changes(self, core: EngineCore) -> None:
        changes = core.scheduler.prefix_cache.take_changes()
        if changes:
            self._on_loop(self._cache_listener, changes)

    def _answer(self) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            self._on_loop(answer)

    def _refuse_asked(self) -> None:
        self._has_ended = True
        for answer in list(self._asked):
            if not answer.done():
                answer.set_exception(EngineDead("the engine is closed"))

    def _report(self, phase: str, done: float) -> None:
        if self._stopping:
            raise EngineDead("the engine was cleaned up while it was loading")
        self._progress(phase, done)

    def _succeed(self, engine: LoadedEngine) -> None:
        if not self.loaded.done():  # else whoever awaited it is gone
            self.loaded.set_result(engine)

    def _fail(self, error: Exception) -> None:
        if not self.loaded.done():
            self.loaded.set_exception(error)

    def _on_loop(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            self._stopping = True


def _kernels(options: TorchEngineOptions) -> Iterator[Source]:
    """What a model may need, of which nothing is known yet."""
    yield from (OPS, PRODUCTS)
    for dtype in COMPILED_DTYPES:
        if options.dtype in {"auto", dtype}:
            yield attention(dtype, SMALLER_CACHES.get(options.kv_cache_dtype, dtype))
    if options.quantization == "int4":
        yield from (INT4, INT4_ROUNDING)


def _ids(requests: Iterable[Request]) -> set[str]:
    """Of the requests of callers: the inputs of one to embed have its id."""
    return {request.context.request_id for request in requests}
