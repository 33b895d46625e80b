"""The first half of a request whose prompt and answer are computed by different engines.

Holds the way through the engines that compute prompts, and the hand-off until the other half has it or
nobody wants it any more. Knows nothing about the other half's engines, and reads nothing in a hand-off.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.choice.prefix_affinity import prefix_chain
from enginewire.backend.engines.choice.routing_hints import Hints
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import Failure, RequestFailed, failed, internal_failure, violation
from enginewire.backend.engines.stream import Chunk, EngineStream, life_of, some
from enginewire.backend.replay.continuation import cut_to_engine_part
from enginewire.backend.replay.traces.trace import Sent, Trace

# The engine refused without looking at the hand-off: another one, or this one later, can still take it.
LEAVES_HANDOFF: Final = frozenset(
    {pb.ERROR_REASON_QUEUE_FULL, pb.ERROR_REASON_NOT_STARTED, pb.ERROR_REASON_DRAINING}
)
# Of the other half, as routing.dp_rank is.
RANK_KEY: Final = "enginewire-dp-rank"


class Prefill:
    """The first half of one request, as often as it has to be repeated."""

    def __init__(self, engines: Endpoints, id_prefix: str, trace: Trace) -> None:
        self.engines = engines
        self.has_failed = False
        self._id_prefix = id_prefix
        self.sent = Sent(None)
        self._trace = trace
        self._endpoint: Endpoint | None = None
        self._stream: EngineStream | None = None
        self._result: pb.PrefillResult | None = None
        self._request_id = ""
        self._not_before: dict[Endpoint, float] = {}
        self._is_renewed = False

    @property
    def lost_life(self) -> str:
        """The engine_lifetime_id under which the prompt was being computed when it failed, or ""."""
        return life_of(self._stream) if self._stream else ""

    async def result(
        self, request: pb.PreprocessedRequest, deadline: float | None, patience: float, hints: Hints
    ) -> pb.PrefillResult:
        """What the other half needs. Raises RequestFailed; waits `patience` seconds for an engine.

        `deadline` is a time of time.monotonic; `hints` are those of the whole request.
        """
        if self._result is None:
            self.has_failed = True
            mine = hints.of_prefill(request.routing)
            self._result = await self._run(prompt_part(request), deadline, patience, mine)
            self.has_failed = False
        return self._result

    def back_off(self, seconds: float) -> None:
        """Leave the engine that failed alone for a while."""
        if self._endpoint is not None:
            self._not_before[self._endpoint] = time.monotonic() + seconds

    def may_renew(self, failure: Failure) -> bool:
        """True, once, for a hand-off that is gone: its engine may be too, and another can make a new one."""
        if failure.reason != pb.ERROR_REASON_HANDOFF_INVALID or self._is_renewed:
            return False
        self._is_renewed = True
        return True

    def leave(self, reason: str, *, is_claimed: bool, failure: Failure | None = None) -> None:
        """The other half is over. What it has not claimed is kept for a repetition or freed."""
        self.sent.end(failure)
        is_open = self._stream is not None
        if self._stream is not None and self._endpoint is not None:
            self._endpoint.in_flight -= 1
            self._stream.abort(reason)
            self._stream = None
        if self._result is not None and failure and failure.reason in LEAVES_HANDOFF and not is_claimed:
            return
        is_unclaimed = self._result is not None and not is_claimed
        if (is_open or is_unclaimed) and self._endpoint is not None:
            # Also for an open stream: the hand-off may be on its way through it.
            self._endpoint.client.abort_soon(self._request_id, reason)
        self._result = None

    async def _run(
        self, request: pb.PreprocessedRequest, deadline: float | None, patience: float, hints: Hints
    ) -> pb.PrefillResult:
        self._endpoint = None
        left = None if deadline is None else deadline - time.monotonic()
        waits = patience if left is None else min(left, patience)
        prefix = prefix_chain(request) if self.engines.has_choice else ()
        endpoint = self._endpoint = await self.engines.pick(
            waits, self._not_before, prefix=prefix, hints=hints
        )
        info = await endpoint.client.info(left)
        if info.config.role != pb.ENGINE_ROLE_PREFILL:
            raise _wrong_role(endpoint.client.target)
        self._request_id = f"{self._id_prefix}.prefill-{secrets.token_hex(4)}"
        call = pb.GenerateRequest(request_id=self._request_id, request=request)
        sent = self.sent = self._trace.send(endpoint.client.target, self.sent, is_prefill=True)
        metadata = {key: value for key, value in (sent.metadata or {}).items() if key != RANK_KEY}
        self._stream = await endpoint.client.submit(call, timeout=left, metadata=metadata)
        endpoint.in_flight += 1
        chunks = some(await self._stream.read())
        is_cancelled = any(chunk.is_cancelled for chunk in chunks)
        is_handed_back = is_cancelled and await endpoint.has_handed_back(life_of(self._stream))
        result = result_of(chunks, is_handed_back=is_handed_back)
        endpoint.in_flight -= 1
        self._stream = None
        sent.end()
        return result


def prompt_part(request: pb.PreprocessedRequest) -> pb.PreprocessedRequest:
    """The request as the engine gets it that computes the prompt: one choice, from the beginning."""
    part = pb.PreprocessedRequest()
    part.CopyFrom(request)
    # Nobody is shown the text of its one token.
    cut_to_engine_part(part, pb.Capabilities())
    part.ClearField("resume")
    part.ClearField("annotations")  # answered by the engine that answers
    if part.HasField("routing"):
        move_rank(part.routing)
    part.sampling_options.ClearField("n")
    part.sampling_options.ClearField("best_of")
    return part


def move_rank(routing: pb.RoutingHints) -> None:
    """`dp_rank` is that of the other half."""
    routing.ClearField("dp_rank")
    if routing.HasField("prefill_dp_rank"):
        routing.dp_rank = routing.prefill_dp_rank


def needs_prefill_worker(request: pb.PreprocessedRequest) -> bool:
    """A certain engine shall compute the prompt, and nobody has done so yet."""
    is_done = request.is_probe or request.HasField("prefill_result") or request.HasField("bootstrap_info")
    return request.routing.HasField("prefill_worker_id") and not is_done


def result_of(chunks: list[Chunk], *, is_handed_back: bool = False) -> pb.PrefillResult:
    """The hand-off in an answer. Raises RequestFailed for any other answer.

    `is_handed_back`: an engine that goes away has cancelled it, so it can be done elsewhere.
    """
    output = chunks[0].output
    if len(chunks) != 1 or output is None:
        raise violation("a prefill that answers with more than one terminal output")
    if chunks[0].is_cancelled and not is_handed_back:
        raise failed(grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED, "the prefill was aborted")
    if chunks[0].is_cancelled:
        raise failed(
            grpc.StatusCode.UNAVAILABLE,
            pb.ERROR_REASON_DRAINING,
            "the prefill engine was shut down before the prompt was computed",
            retryable=True,
        )
    if output.finish_reason == pb.FINISH_REASON_ERROR:
        raise RequestFailed(internal_failure(f"the prefill failed: {output.error_message}"))
    is_handoff = output.finish_reason == pb.FINISH_REASON_LENGTH and output.HasField("prefill_handoff")
    if not is_handoff or len(output.token_ids) > 1:
        raise violation("a prefill without a hand-off")
    return pb.PrefillResult(
        handoff=output.prefill_handoff,
        prompt_tokens_details=output.completion_usage.prompt_tokens_details,
    )


def _wrong_role(target: str) -> RequestFailed:
    return failed(
        grpc.StatusCode.FAILED_PRECONDITION,
        pb.ERROR_REASON_ROLE_MISMATCH,
        f"{target}: not an engine of --role prefill",
    )
