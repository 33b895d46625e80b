"""Which requests are in the engine: bounded admission, live requests, their ends.

`RequestTable` is the only door between RPCs and the engine. Requests go in through `submit`, outputs
come back through `deliver` once per step and go on to each request's sink. Knows nothing about gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from enginewire import v1 as pb
from enginewire.access.caller import ANYBODY, Caller, caller
from enginewire.server.admission.adapters import AdapterTable, chosen_adapter
from enginewire.server.admission.delivery import Sink
from enginewire.server.admission.embedding import EmbeddingWork
from enginewire.server.admission.generation import Generation, live_of, need_of
from enginewire.server.admission.live import Accepted, Discard, Failed, Live, count_tokens, live_in
from enginewire.server.admission.observer import Admission, Observer
from enginewire.server.admission.origin import NOWHERE, Origin
from enginewire.server.admission.queue.fair_queue import FairQueue
from enginewire.server.admission.queue.limits import QueueLimits, queue_full
from enginewire.server.admission.queue.turns import Turns
from enginewire.server.admission.remembered_ids import RememberedIds
from enginewire.server.admission.request_check import RequestCheck
from enginewire.server.admission.step_check import mistakes_of
from enginewire.server.engines.calls import returned
from enginewire.server.engines.interface import (
    EmbeddingEngine,
    GenerateContext,
    PreparingEngine,
    StepEngine,
    StepOutputs,
    discard_handoff,
)
from enginewire.server.failures import (
    Cancelled,
    DuplicateRequest,
    EngineError,
    EngineMistake,
    NotStarted,
    SlowConsumer,
    Unsupported,
    give_id,
)
from enginewire.server.validation.embed import check_embed
from enginewire.server.validation.generate import check_generate

log = logging.getLogger(__name__)

# Engines take note of an abort at once; its request ends later.
ABORT_SECONDS = 2.0


class RequestTable:
    """The live requests of one engine."""

    def __init__(
        self,
        limits: QueueLimits,
        *,
        log_requests: bool = False,
        adapters: AdapterTable | None = None,
        check_engine: bool = False,
        observer: Observer | None = None,
        queue: FairQueue | None = None,
    ) -> None:
        """`log_requests`: one line when a request ends, with ids and counts, never its content.

        `adapters` are those that requests may name, None when that is the engine's to know. With
        `check_engine` everything the engine sends is checked, not only what costs next to nothing.
        """
        self._check_engine = check_engine
        self._blamed: set[asyncio.Task[bool]] = set()
        self.turns = Turns(limits, queue, self._fail)
        self.adapters = adapters
        self.observer = observer or Observer()
        self._log_requests = log_requests
        self.step = 0
        self.closed: Callable[[], EngineError] | None = lambda: NotStarted("the engine is still starting")
        self._engine: StepEngine | None = None
        self.config = pb.EngineConfig()
        self._live: dict[str, Live] = {}
        self._num_preparing = 0
        self._past = RememberedIds()
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, engine: StepEngine, config: pb.EngineConfig) -> None:
        """Admit requests to `engine` from now on."""
        engine.set_step_listener(self.deliver)
        self.turns.open(engine, config)
        self._engine, self.config, self.closed = engine, config, None

    def close(self, failure: Callable[[], EngineError]) -> None:
        """Refuse new requests from now on; `failure` makes the refusal."""
        self.closed = failure

    async def prepare(self, request: pb.GenerateRequest, origin: Origin = NOWHERE) -> None:
        """Before `submit` of a request that `needs_preparation`; raises what would reject it there."""
        with Admission(self.observer, request, origin):
            engine = self._open_engine()
            check_generate(request, self.config)
            chosen_adapter(self.config, self.adapters, request.request.model, request.request.routing)
            if self._num_preparing >= (most := self.turns.limits.requests):
                raise queue_full("requests", self._num_preparing, most)
            self._num_preparing += 1
            try:
                if isinstance(engine, PreparingEngine):
                    await engine.prepare(request.request)
            finally:
                self._num_preparing -= 1

    def submit(
        self, request: pb.GenerateRequest, sink: Sink, deadline: float | None, origin: Origin = NOWHERE
    ) -> GenerateContext:
        """Check the request and let it in. Raises `EngineError`, then nothing has happened.

        `deadline` is on the time.monotonic() clock. The request is that of the current caller.
        """
        with Admission(self.observer, request, origin):
            engine = self._open_engine()
            check_generate(request, self.config)
            asked = request.request
            adapter = chosen_adapter(self.config, self.adapters, asked.model, asked.routing)
            self._check_id(request.request_id)
            context = GenerateContext(request.request_id, deadline=deadline, trace=origin.trace)
            live = live_of(asked, context, sink, adapter, self.config, origin.party)
            if self._check_engine:
                live.check = RequestCheck(asked, self.config)
            work = Generation(engine, asked, context, need_of(asked, self.config))
            self._enter(live, work, asked)
            return context

    async def embed(
        self,
        request: pb.EmbedRequest,
        deadline: float | None,
        routing: pb.RoutingHints | None = None,
        origin: Origin = NOWHERE,
    ) -> pb.EmbeddingsEngineOutput:
        """Check the request, and let the engine compute it. Raises `EngineError`. A deadline as in `submit`.

        `routing` came as metadata. However this ends, the engine then holds nothing of the request any more.
        """
        with Admission(self.observer, request, origin):
            work, live = self._begin_embedding(request, deadline, routing or pb.RoutingHints(), origin)
        failed: Failed = pb.ERROR_REASON_CANCELLED  # by the caller who leaves, unless something else happens
        try:
            output = await work.result()
            failed = None
            return output
        except Exception as error:
            failed = error.reason if isinstance(error, EngineError) else pb.ERROR_REASON_INTERNAL
            raise
        finally:
            await work.close()
            self._remove(live, "FAILED" if failed else "EMBEDDED", pb.CompletionUsage(), failed)
            self.turns.start_next()

    def deliver(self, outputs: StepOutputs) -> None:
        """Hand everything one step produced to the sinks. Called on the event loop, once per step."""
        mistakes = mistakes_of(outputs, self.config.vocab_size, is_full=self._check_engine)
        for context, mistake in mistakes.items():
            self._blame(context, mistake)
        self.observer.step(outputs)
        if self.turns.meters.limits_tokens:
            count_tokens(outputs)
        self.step = outputs.step
        for context, event in outputs.events:
            live_in(context).engine_event(event)
        for context, index, position, token_id in zip(
            outputs.contexts, outputs.indexes, outputs.positions, outputs.token_ids, strict=True
        ):
            # The hottest line of the shell: attribute access only, no cast and no lookup per token.
            context.sink.sink.token(index, position, token_id)  # type: ignore[attr-defined]  # a Live
        for context, output in outputs.outputs:
            self._output(live_in(context), output)
        for context, failure in outputs.failures:
            self._fail(live_in(context), failure)
        self.turns.start_next()

    async def abort(self, context: GenerateContext, reason: str) -> None:
        """Ask the engine to end one request. Its terminal output or failure still comes."""
        if self._live.get(context.request_id) is not context.sink or context.is_cancelled:
            return
        context.cancel(reason)
        if (ends := self.turns.cancelled(live_in(context))) is not None:
            self.deliver(StepOutputs(self.step, outputs=[(context, output) for output in ends]))
            return
        engine = self._engine
        assert engine is not None, "a live request implies an engine"
        await returned("abort", lambda: engine.abort(context))

    async def abort_ids(self, request_ids: Sequence[str], reason: str) -> list[pb.AbortOutcome.ValueType]:
        """Abort by exact ids, an outcome for each; remembers those that have not arrived yet."""
        asking = caller()
        outcomes = {request_id: self._outcome(request_id, asking) for request_id in request_ids}
        aborted = [each for each, outcome in outcomes.items() if outcome == pb.ABORT_OUTCOME_ABORTED]
        await self.abort_each([self._live[request_id].context for request_id in aborted], reason)
        return [outcomes[request_id] for request_id in request_ids]

    def _outcome(self, request_id: str, asking: Caller) -> pb.AbortOutcome.ValueType:
        """What an abort of that id comes to; what is not live is settled with it. Others' are not known."""
        live, owner = self._live.get(request_id), self._past.owner(request_id)
        if live is not None and asking.may_end(live.owner):
            return pb.ABORT_OUTCOME_ABORTED
        has_ended = live is None and owner is not None and asking.may_end(owner)
        if has_ended or (live is None and asking.is_admin):
            discard_handoff(self._engine, request_id)
        if has_ended:
            return pb.ABORT_OUTCOME_FINISHED
        self._past.abort_early(request_id, asking)
        return pb.ABORT_OUTCOME_UNKNOWN

    async def abort_all(self, reason: str, asking: Caller = ANYBODY) -> list[str]:
        """Abort every live request that the caller may end; returns their ids."""
        contexts = [live.context for live in self._live.values() if asking.may_end(live.owner)]
        await self.abort_each(contexts, reason)
        return [context.request_id for context in contexts]

    async def abort_each(self, contexts: list[GenerateContext], reason: str) -> None:
        """All at once, and not for ever: an abort that does not end holds up neither caller nor neighbour."""
        aborts = [asyncio.create_task(self.abort(context, reason)) for context in contexts]
        if aborts:
            await asyncio.wait(aborts, timeout=ABORT_SECONDS)

    def fail_all(self, failure: Callable[[], EngineError]) -> None:
        """End every live request with a failure, without the engine's help."""
        for live in list(self._live.values()):
            self._fail(live, failure())

    def hand_back(self, failure: Callable[[], EngineError]) -> None:
        """Fail what the engine has not heard of, so that its callers move on."""
        for live in self.turns.waiting:
            self._fail(live, failure())

    async def abort_slow(self) -> None:
        """Abort requests whose reader has lagged too far behind."""
        now = time.monotonic()
        slow = [live for live in self._live.values() if live.sink.is_slow(now)]
        for live in slow:
            live.sink.fail(SlowConsumer(f"{live.context.request_id}: the reader is too slow"))
            live.sink = Discard()
            self.observer.slow()
        await self.abort_each([live.context for live in slow], "slow consumer")

    def uses_adapter(self, name: str) -> bool:
        """True while a request for that adapter is in the engine."""
        return any(live.adapter == name for live in self._live.values())

    @property
    def live_count(self) -> int:
        """Requests in the engine."""
        return len(self._live)

    async def wait_idle(self) -> None:
        """Return when no request is in the engine."""
        await self._idle.wait()

    def _begin_embedding(
        self, request: pb.EmbedRequest, deadline: float | None, routing: pb.RoutingHints, origin: Origin
    ) -> tuple[EmbeddingWork, Live]:
        engine = self._open_engine()
        if not self.config.capabilities.embeddings or not isinstance(engine, EmbeddingEngine):
            raise Unsupported("this engine has no embeddings")
        check_embed(request, routing, self.config, engine.embedding_size)
        adapter = chosen_adapter(self.config, self.adapters, request.request.model, routing)
        self._check_id(request.request_id)
        context = GenerateContext(request.request_id, deadline=deadline, routing=routing, trace=origin.trace)
        work = EmbeddingWork(engine, request.request, context)
        context.sink = live = Live(context, work, 1, adapter, party=origin.party)
        try:
            self._enter(live, work, request.request)
        except EngineError:
            work.cancel()
            raise
        return work, live

    def _enter(self, live: Live, work: Generation | EmbeddingWork, request: Accepted) -> None:
        self.turns.take(live, work, self._live.values())
        self._live[live.context.request_id] = live
        self._idle.clear()
        self.observer.accepted(live.context, request)

    def _check_id(self, request_id: str) -> None:
        if request_id in self._live:
            raise DuplicateRequest(f"request_id: {request_id} is live", field="request_id")
        if self._past.was_aborted_early(request_id, caller().identity):
            raise Cancelled("request_id: aborted before it arrived", field="request_id")

    def _open_engine(self) -> StepEngine:
        if self.closed is not None:
            raise self.closed()
        assert self._engine is not None, "an open table has an engine"
        return self._engine

    def _output(self, live: Live, output: pb.LLMEngineOutput) -> None:
        if output.index in live.ended:
            self._blame(live.context, f"choice {output.index} has ended, and gets more")
            return
        if output.finish_reason and live.end_as_told(output):
            discard_handoff(self._engine, live.context.request_id)
        live.sink.output(output)
        if output.finish_reason:
            live.ended.add(output.index)
            live.open_choices -= 1
            self.turns.choice_ended(live)
            if live.open_choices == 0:
                live.sink.finish()
                self._remove(live, pb.FinishReason.Name(output.finish_reason), output.completion_usage)

    def _blame(self, context: GenerateContext, mistake: str) -> None:
        """End a request whose engine broke a rule; what else comes of it reaches nobody."""
        live, engine = live_in(context), self._engine
        if self._live.get(context.request_id) is not live:
            return
        failure = EngineMistake(f"request {context.request_id}: {mistake}")
        give_id(failure)
        self._fail(live, failure)
        context.cancel("the engine made a mistake")
        assert engine is not None, "a live request implies an engine"
        aborting = asyncio.ensure_future(returned("abort", lambda: engine.abort(context)))
        self._blamed.add(aborting)
        aborting.add_done_callback(self._blamed.discard)

    def _fail(self, live: Live, failure: EngineError) -> None:
        live.sink.fail(failure)
        # A request that was failed without the engine's help may still get outputs from it.
        live.sink = Discard()
        self._remove(live, pb.ErrorReason.Name(failure.reason), pb.CompletionUsage(), failure.reason)

    def _remove(self, live: Live, outcome: str, usage: pb.CompletionUsage, failed: Failed = None) -> None:
        request_id = live.context.request_id
        if self._live.get(request_id) is not live:  # it was failed before, without the engine's help
            return
        if self._log_requests:
            counts = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
            log.info("request %s ended: %s, %s, %s", request_id, outcome, counts, live.times)
        del self._live[request_id]
        self._past.finish(request_id, live.owner)
        self.turns.ended(live, usage)
        if not self._live:
            self._idle.set()
        self.observer.ended(live, usage, failed)
