"""One request and the engines it is sent to, one after the other.

Holds what the next engine is told so that the answer goes on exactly where the lost one left off, and
when to give up. Knows nothing about text, and of the answer only what was passed on.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.decoding.request_decoder import RequestDecoder
from enginewire.backend.engines.choice.prefix_affinity import prefix_chain
from enginewire.backend.engines.choice.routing_hints import Hints, read_hints, refused
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed, failed
from enginewire.backend.engines.likeness import begins_like
from enginewire.backend.engines.stream import Chunk, EngineStream, Take, life_of, some, without_cancelled
from enginewire.backend.engines.suspicion import Suspicion
from enginewire.backend.replay.backend_call import BackendCall
from enginewire.backend.replay.continuation import (
    can_continue,
    cut_to_engine_part,
    cut_to_rest,
    goes_on_like,
    has_delivered,
    needs_seed,
)
from enginewire.backend.replay.interruption import Interruption
from enginewire.backend.replay.prefill import Prefill, needs_prefill_worker
from enginewire.backend.replay.retry import DEATHS, RetryBudget, RetryPolicy
from enginewire.backend.replay.traces.trace import Sent, Trace

SEED_BITS: Final = 64
# Leaves room for the suffix within the 128 bytes of an id.
MAX_ID_PREFIX: Final = 96
# How soon to look again whether another request's trial is over.
TRIAL_POLL_SECONDS: Final = 0.02


class Attempts:
    """The way of one request through the engines. Without a policy there is one attempt."""

    def __init__(
        self,
        engines: Endpoints,
        call: BackendCall[pb.PreprocessedRequest],
        make_decoder: Callable[[pb.EngineConfig], RequestDecoder],
        policy: RetryPolicy | None,
        budget: RetryBudget,
        prefill: Endpoints | None = None,
        trace: Trace | None = None,
    ) -> None:
        """`make_decoder` may raise for what no engine should get. Beside `prefill` others may be DECODE."""
        self.number = 0
        self.engine_lifetime_id = ""
        self.request_id = call.request_id or uuid.uuid4().hex
        self._engines = engines
        self._call = call
        self._make_decoder = make_decoder
        self._policy = policy
        self._budget = budget
        self._part = pb.PreprocessedRequest()
        self._prefix = prefix_chain(call.request) if engines.has_choice else ()
        self._trace = trace or Trace(call.metadata)
        self._sent = Sent(None)
        self._prefill = Prefill(prefill, self.request_id[:MAX_ID_PREFIX], self._trace) if prefill else None
        self._hints: Hints | None = None
        self._decoder: RequestDecoder | None = None
        self._endpoint: Endpoint | None = None
        self._stream: EngineStream | None = None
        self._origin: pb.GetEngineInfoResponse | None = None
        self._num_failures = 0
        self._failure: RequestFailed | None = None
        # Annotations that the caller has an answer to, by their keys: nobody is asked for it again.
        self._answered: frozenset[str] = frozenset()
        # The life of the engine that has generated last, and how many tokens were there before it.
        self._origin_life = call.request.resume.origin_lifetime_id
        self._num_before = 0
        self._not_before: dict[Endpoint, float] = {}
        self._unfit: set[Endpoint] = set()
        self._suspicion = Suspicion(policy.max_deaths if policy else 0)
        self._interruption = Interruption()

    @property
    def is_finished(self) -> bool:
        """Every choice has had its terminal output."""
        return self._decoder is not None and self._decoder.is_finished

    @property
    def stream(self) -> EngineStream | None:
        """What the engine that has it says; None while none has it."""
        return self._stream

    @property
    def target(self) -> str:
        """Where its engine is; "" while it has none."""
        return "" if self._endpoint is None else self._endpoint.client.target

    @property
    def num_passed_on(self) -> int:
        """Tokens of all choices, those of a resumed answer included."""
        return 0 if self._decoder is None else self._decoder.num_passed_on

    @property
    def _has_begun(self) -> bool:
        """The caller has seen something of the answer."""
        decoder = self._decoder
        return decoder is not None and (has_delivered(decoder) or decoder.has_prompt_logprobs)

    @property
    def num_withheld(self) -> int:
        """Characters of all choices that may still become a stop string."""
        return 0 if self._decoder is None else sum(len(c.decoder.withheld) for c in self._decoder.choices)

    @property
    def decoder(self) -> RequestDecoder:
        """One for all attempts: it says what was passed on."""
        assert self._decoder is not None, "something was read"
        return self._decoder

    async def read(self, take: Take | None = None) -> list[Chunk]:
        """What has arrived, never nothing; sends the request when that is due. `take` as in EngineStream.

        Raises RequestFailed, also for a stream that ends too early or never.
        """
        stream = self._stream
        if stream is None:
            stream = await self._interruption.unless_caused(self._begin_stream)
        chunks = some(await stream.read(take))
        if not stream.has_cancelled or not any(chunk.is_cancelled for chunk in chunks):
            return chunks
        return without_cancelled(chunks) if await self._is_handed_back(stream) else chunks

    async def _is_handed_back(self, stream: EngineStream) -> bool:
        """What was cancelled can go on elsewhere: the engine did it on its own because it goes away."""
        if self._policy is None or self._interruption.is_caused:
            return False
        assert self._endpoint is not None, "a stream has an engine"
        return await self._endpoint.has_handed_back(life_of(stream))

    async def _begin_stream(self) -> EngineStream:
        return await self._send(*await self._connect())

    async def _connect(self) -> tuple[Endpoint, pb.Capabilities]:
        """An engine that can do it, and what it can do. Raises RequestFailed when there is none."""
        while True:
            self._endpoint = None
            endpoint = self._endpoint = await self._pick()
            info = await endpoint.client.info(self._call.seconds_left)
            origin = self._origin
            if origin is None or (not self._has_begun and begins_like(origin, info)):
                self._begin(info)
            elif not goes_on_like(origin, info, self._part):
                self._unfit.add(endpoint)
                self._suspicion.leave(endpoint)
                continue
            return endpoint, info.config.capabilities

    async def _send(self, endpoint: Endpoint, capabilities: pb.Capabilities) -> EngineStream:
        """The request, or what is left of it. Raises RequestFailed."""
        self.number += 1
        request = pb.GenerateRequest(request_id=self._next_id(), request=self._next_part())
        cut_to_engine_part(request.request, capabilities)
        self.decoder.meet(capabilities)
        if self._is_halved(request.request):
            assert self._prefill is not None, "it was asked"
            result = await self._prefill.result(
                request.request, self._call.deadline, self._patience, self._routing
            )
            request.request.prefill_result.CopyFrom(result)
            self._sent = self._prefill.sent
            self._sent.link(request.request)
        elif needs_prefill_worker(request.request):
            raise refused("routing.prefill_worker_id", "the engine that answers computes the prompt itself")
        sent = self._sent = self._trace.send(endpoint.client.target, self._sent)
        self._num_before = self.num_passed_on
        left = self._call.seconds_left
        self._stream = await endpoint.client.submit(request, timeout=left, metadata=sent.metadata)
        endpoint.in_flight += 1
        return self._stream

    def recover(self, failure: RequestFailed) -> bool:
        """Return when the request may be sent again; True when that continues what was delivered.

        Raises `failure` when it may not, or another one that says why it never will.
        """
        endpoint, decoder = self._endpoint, self._decoder
        lost_prefill = self._prefill.lost_life if self._prefill else ""
        life = life_of(self._stream) if self._stream else ""
        is_alone = endpoint is not None and self._suspicion.is_alone(endpoint, life)
        was_accepted = self._leave("the request goes on elsewhere", failure)
        self._num_failures += 1
        # Without an endpoint: none came although the request waited for one.
        if self._policy is None or endpoint is None or not self._may_repeat(self._policy, failure):
            raise failure
        is_continued = decoder is not None and has_delivered(decoder)
        if is_continued and not (self._can_continue and self.decoder.take_over()):
            raise failure
        if is_continued and self._origin is not None and not self._origin.config.capabilities.resume:
            # Its next life cannot go on either.
            self._unfit.add(endpoint)
        if was_accepted and failure.reason in DEATHS:
            self._check_deaths(failure, self._engines, life, is_alone=is_alone)
        if lost_prefill and self._prefill is not None and failure.reason in DEATHS:
            # Who else was in that engine is not known here.
            self._check_deaths(failure, self._prefill.engines, lost_prefill, is_alone=False)
        if not self._budget.take():
            raise failure
        backoff = self._policy.backoff(self._num_failures, failure.failure.retry_after)
        if self._prefill is not None and self._prefill.has_failed:
            self._prefill.back_off(backoff)
        else:
            self._not_before[endpoint] = time.monotonic() + backoff
        self._failure = failure
        return is_continued

    def succeed(self) -> None:
        """Every choice has ended."""
        self._budget.succeed()

    def abort(self, reason: str) -> None:
        """End it from outside; `read` raises RequestFailed once everything that came before was read."""
        failure = failed(grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED, reason)
        self._interruption.cause(failure)
        if self._stream is not None:
            self._stream.abort(reason, failure.failure)
            self._stream.wake()

    def end(self, reason: str) -> None:
        """Nobody wants more: abort what still runs."""
        self._leave(reason)
        if self._hints is not None:
            self._engines.leave(self._hints)
            if self._prefill is not None:
                self._prefill.engines.leave(self._hints)

    def _begin(self, info: pb.GetEngineInfoResponse) -> None:
        self._origin = info
        self._part.CopyFrom(self._call.request)
        if self._decoder is None:
            self._decoder = self._suspicion.answer = self._make_decoder(info.config)
        if self._policy is not None and needs_seed(self._part, info.config.capabilities):
            self._part.sampling_options.seed = secrets.randbits(SEED_BITS)

    def _leave(self, reason: str, failure: RequestFailed | None = None) -> bool:
        """Give the stream up; True when the engine had accepted the request."""
        stream, self._stream = self._stream, None
        why = failure.failure if failure else None
        self._sent.end(why)
        if self._prefill is not None:
            is_claimed = stream is not None and stream.accepted is not None
            self._prefill.leave(reason, is_claimed=is_claimed, failure=why)
        if self._endpoint is not None:
            self._suspicion.leave(self._endpoint)
        if stream is None:
            return False
        assert self._endpoint is not None, "a stream has an engine"
        self._endpoint.in_flight -= 1
        self._answered |= stream.answered
        stream.abort(reason)
        if stream.accepted is None:
            return False
        self.engine_lifetime_id = life_of(stream)
        if self.num_passed_on > self._num_before or not self._origin_life:
            self._origin_life = self.engine_lifetime_id
        return True

    async def _pick(self) -> Endpoint:
        try:
            while True:
                # Anew each time: to wait for another one's trial is not to wait for an engine.
                left = self._call.seconds_left
                patience = self._patience if left is None else min(left, self._patience)
                endpoint = await self._engines.pick(
                    patience, self._not_before, self._unfit, self._prefix, self._routing
                )
                if not self._suspicion.must_wait_for(endpoint):
                    # At once: the next one that looks shall see it.
                    self._suspicion.enter(endpoint)
                    return endpoint
                self._not_before[endpoint] = time.monotonic() + TRIAL_POLL_SECONDS
        except RequestFailed as nobody:
            raise self._failure or nobody from nobody

    @property
    def _routing(self) -> Hints:
        """What the request says about its engine. Raises RequestFailed."""
        if self._hints is None:
            self._hints = read_hints(self._call.request.routing, self._call.metadata)
        return self._hints

    @property
    def _patience(self) -> float:
        """Seconds to wait for an engine that is ready."""
        return 0.0 if self._policy is None else self._policy.recovery

    def _is_halved(self, request: pb.PreprocessedRequest) -> bool:
        """The engine only goes on where another one has computed the prompt; all that fit have one role."""
        assert self._origin is not None, "the engine was asked"
        is_ours = self._prefill is not None and not (
            request.is_probe or request.HasField("prefill_result") or request.HasField("bootstrap_info")
        )
        return is_ours and self._origin.config.role == pb.ENGINE_ROLE_DECODE

    def _may_repeat(self, policy: RetryPolicy, failure: RequestFailed) -> bool:
        if self._num_failures >= policy.max_attempts:
            return False
        is_renewed = self._prefill is not None and self._prefill.may_renew(failure.failure)
        return is_renewed or policy.allows(failure.failure, self._num_failures)

    @property
    def _can_continue(self) -> bool:
        assert self._origin is not None, "something was delivered"
        capabilities = self._origin.config.capabilities
        return (capabilities.resume or self._engines.has_choice) and can_continue(self._part, capabilities)

    def _check_deaths(self, failure: RequestFailed, engines: Endpoints, life: str, *, is_alone: bool) -> None:
        """Raise for a request that engines keep dying of."""
        if deaths := self._suspicion.blame(engines, life, is_alone=is_alone):
            message = f"{deaths} engines died under the request, perhaps because of it: {failure}"
            raise RequestFailed(replace(failure.failure, message=message, retryable=False))

    def _next_id(self) -> str:
        """A lost engine may still hold the id of the attempt before."""
        if self.number == 1:
            return self.request_id
        return f"{self.request_id[:MAX_ID_PREFIX]}.{self.number}-{secrets.token_hex(4)}"

    def _next_part(self) -> pb.PreprocessedRequest:
        if self.number > 1:
            self._sent.link(self._part)
            # A caller's own resume counts the engines it has tried itself.
            attempt = self._call.request.resume.attempt + self.number - 1
            cut_to_rest(self._part, self.decoder, self._answered, attempt, self._origin_life)
        return self._part
