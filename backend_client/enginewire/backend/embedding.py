"""Inputs as token ids in, checked vectors out.

A long list of inputs goes to the engines in several calls at once. Knows nothing about text or faces.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed, failed, violation
from enginewire.backend.replay.backend_call import BackendCall
from enginewire.backend.replay.retry import RetryBudget, RetryPolicy
from enginewire.backend.replay.traces.trace import Sent, Trace

# Few enough that an answer is one message: 64 vectors of 8,192 numbers have 2 MiB.
MAX_INPUTS_PER_CALL: Final = 64
# Leaves room for the suffix within the 128 bytes of an id.
MAX_ID_PREFIX: Final = 96
MAX_UINT32: Final = 2**32 - 1
INPUT: Final = re.compile(r"\btoken_ids\[(\d+)\]")

EmbedCall: TypeAlias = BackendCall[pb.PreprocessedEmbeddingRequest]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector of float32 per input, in order, and the tokens of all inputs."""

    vectors: Sequence[array[float]]
    prompt_tokens: int


def embeddings_to_proto(embeddings: Embeddings) -> pb.EmbeddingsEngineOutput:
    """The message of the vectors."""
    tokens = min(embeddings.prompt_tokens, MAX_UINT32)
    vectors = [pb.Embedding(values=each) for each in embeddings.vectors]
    return pb.EmbeddingsEngineOutput(embeddings=vectors, prompt_tokens=tokens, total_tokens=tokens)


async def embed(
    engines: Endpoints,
    call: EmbedCall,
    policy: RetryPolicy | None,
    budget: RetryBudget,
    trace: Trace | None = None,
) -> Embeddings:
    """The vectors. Raises RequestFailed, in which paths name the inputs of the whole request."""
    if not call.request.token_ids:
        code, reason = grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_REASON_INVALID_REQUEST
        raise failed(code, reason, "token_ids: must not be empty", field="token_ids")
    call = replace(call, request_id=call.request_id or uuid.uuid4().hex)
    starts = range(0, len(call.request.token_ids), MAX_INPUTS_PER_CALL)
    under = trace or Trace(call.metadata)
    parts = [
        asyncio.create_task(_Part(engines, call, policy, budget, under, start).embed()) for start in starts
    ]
    try:
        outputs = await asyncio.gather(*parts)
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
    vectors = [array("f", each.values) for output in outputs for each in output.embeddings]
    if len({len(each) for each in vectors}) > 1:
        raise violation("vectors of different sizes")
    return Embeddings(vectors, sum(output.prompt_tokens for output in outputs))


class _Part:
    """Some of the inputs, and the engines they are sent to, one after the other."""

    def __init__(
        self,
        engines: Endpoints,
        call: EmbedCall,
        policy: RetryPolicy | None,
        budget: RetryBudget,
        trace: Trace,
        start: int,
    ) -> None:
        self._engines = engines
        self._call = call
        self._policy = policy
        self._budget = budget
        self._trace = trace
        self._sent = Sent(None)
        self._start = start
        self._request = part_of(call.request, start)

    async def embed(self) -> pb.EmbeddingsEngineOutput:
        """Raises RequestFailed."""
        not_before: dict[Endpoint, float] = {}
        failure: RequestFailed | None = None
        attempt = 0
        while True:
            attempt += 1
            endpoint = await self._pick(not_before, failure)
            try:
                output = await self._ask(endpoint, self._id_of(attempt))
            except RequestFailed as error:
                failure = shifted(error, self._start)
                if self._policy is None or not self._policy.allows(failure.failure, attempt):
                    raise failure from error
                if not self._budget.take():
                    raise failure from error
                wait = self._policy.backoff(attempt, failure.failure.retry_after)
                not_before[endpoint] = time.monotonic() + wait
            else:
                self._budget.succeed()
                return output

    async def _pick(self, not_before: Mapping[Endpoint, float], failure: RequestFailed | None) -> Endpoint:
        patience = 0.0 if self._policy is None else self._policy.recovery
        left = self._call.seconds_left
        try:
            return await self._engines.pick(patience if left is None else min(left, patience), not_before)
        except RequestFailed as nobody:
            raise failure or nobody from nobody

    def _id_of(self, attempt: int) -> str:
        """The caller's own for the first call. A lost engine may still hold that of the attempt before."""
        if self._start == 0 and attempt == 1:
            return self._call.request_id
        return f"{self._call.request_id[:MAX_ID_PREFIX]}.{self._start}-{attempt}"

    async def _ask(self, endpoint: Endpoint, request_id: str) -> pb.EmbeddingsEngineOutput:
        request = pb.EmbedRequest(request_id=request_id, request=self._request)
        endpoint.in_flight += 1
        sent = self._sent = self._trace.send(endpoint.client.target, self._sent)
        try:
            left = self._call.seconds_left
            response = await endpoint.client.embed(request, timeout=left, metadata=sent.metadata)
        except RequestFailed as error:
            sent.end(error.failure)
            raise
        finally:
            sent.end()
            endpoint.in_flight -= 1
        if response.request_id != request_id:
            raise violation("vectors of another request")
        check_output(response.output, self._request)
        return response.output


def part_of(request: pb.PreprocessedEmbeddingRequest, start: int) -> pb.PreprocessedEmbeddingRequest:
    """The request for the inputs from `start` on that fit into one call."""
    part = pb.PreprocessedEmbeddingRequest()
    for field, value in request.ListFields():
        if field.name == "annotations":
            part.annotations.extend(value)
        elif field.name != "token_ids":
            setattr(part, field.name, value)
    part.token_ids.extend(request.token_ids[start : start + MAX_INPUTS_PER_CALL])
    return part


def check_output(output: pb.EmbeddingsEngineOutput, request: pb.PreprocessedEmbeddingRequest) -> None:
    """Raise RequestFailed for an answer that the contract does not allow."""
    if len(output.embeddings) != len(request.token_ids):
        raise violation(f"{len(output.embeddings)} vectors for {len(request.token_ids)} inputs")
    size = request.dimensions if request.HasField("dimensions") else len(output.embeddings[0].values)
    for each in output.embeddings:
        if len(each.values) != size or not size:
            raise violation(f"a vector of {len(each.values)} dimensions")
        # In double precision float32 cannot overflow, and what is not finite stays so.
        if not math.isfinite(sum(each.values)):
            raise violation("a vector that is not finite")
    tokens = min(sum(len(each.token_ids) for each in request.token_ids), MAX_UINT32)
    if output.prompt_tokens != tokens or output.total_tokens != tokens:
        raise violation(f"{output.prompt_tokens} tokens used for {tokens}")


def renamed(failure: RequestFailed, old: str, new: str) -> RequestFailed:
    """The failure with another path for the inputs, whose name depends on who asked."""
    why = failure.failure
    field, message = why.field.replace(old, new, 1), why.message.replace(old, new, 1)
    return RequestFailed(replace(why, field=field, message=message))


def shifted(failure: RequestFailed, start: int) -> RequestFailed:
    """The failure of a part whose first input is number `start` of the whole."""

    def move(text: str) -> str:
        return INPUT.sub(lambda found: f"token_ids[{int(found[1]) + start}]", text)

    why = failure.failure
    return RequestFailed(replace(why, field=move(why.field), message=move(why.message)))
