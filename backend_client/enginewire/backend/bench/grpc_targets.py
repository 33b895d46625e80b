"""An engine and a backend over gRPC, as targets of a load.

Knows nothing about times.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence

import grpc

from enginewire import v1 as pb
from enginewire.backend.bench.options import BenchOptions
from enginewire.backend.bench.timeline import Delivery, Failed, Piece, Used
from enginewire.backend.bench.workload import Job
from enginewire.backend.commands.life import describe
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import Failure, RequestFailed, from_rpc_error
from enginewire.backend.engines.stream import Chunk
from enginewire.backend.prompting.tokenizer import BackendTokenizer


class EngineTarget:
    """EngineService, multiplexed or a call per request, as the client was made."""

    def __init__(self, client: EngineClient, options: BenchOptions) -> None:
        self._client = client
        self._options = options

    async def answer(self, job: Job) -> AsyncGenerator[Piece, None]:
        """See Target."""
        asked = pb.GenerateRequest(request_id=uuid.uuid4().hex, request=request_of(job, self._options))
        try:
            stream = await self._client.submit(asked, timeout=self._options.timeout)
            try:
                while chunks := await stream.read():
                    yield Delivery(sum(len(chunk.token_ids) for chunk in chunks))
                    check_finish(chunks)
            finally:
                stream.abort("the load generator ends")
        except RequestFailed as error:
            raise Failed(describe(error.failure)) from error


class BackendTarget:
    """BackendService."""

    def __init__(self, channel: grpc.aio.Channel, options: BenchOptions) -> None:
        self._stub = pb.BackendServiceStub(channel)
        self._options = options

    async def answer(self, job: Job) -> AsyncGenerator[Piece, None]:
        """See Target."""
        call = self._stub.Generate(backend_request_of(job, self._options), timeout=self._options.timeout)
        try:
            async for response in call:
                if response.annotated.HasField("error"):
                    raise Failed(describe(Failure.from_proto(response.annotated.error)))
                for piece in pieces_of(response.annotated.data):
                    yield piece
        except grpc.aio.AioRpcError as error:
            raise Failed(describe(from_rpc_error(error).failure)) from error
        finally:
            call.cancel()


def request_of(job: Job, options: BenchOptions) -> pb.PreprocessedRequest:
    """The request without a prompt that is text."""
    return pb.PreprocessedRequest(
        model=options.model,
        token_ids=job.token_ids,
        stop_conditions=pb.StopConditions(max_tokens=job.max_tokens, ignore_eos=options.ignore_eos),
        sampling_options=pb.SamplingOptions(temperature=options.temperature),
    )


def backend_request_of(job: Job, options: BenchOptions) -> pb.BackendServiceGenerateRequest:
    """The request, whatever its prompt."""
    asked = pb.BackendServiceGenerateRequest(request=request_of(job, options))
    if job.token_ids:
        asked.token_ids = True
    elif job.text:
        asked.text = job.text
    for role, content in job.messages:
        asked.chat.messages.add(role=role, content=content)
    return asked


def check_finish(chunks: Sequence[Chunk]) -> None:
    """Raise Failed for a choice without a normal end."""
    for chunk in chunks:
        if chunk.output is not None:
            check_reason(chunk.output.finish_reason, chunk.output.error_message)


def check_reason(reason: pb.FinishReason.ValueType, message: str) -> None:
    """Raise Failed for a finish that is none."""
    if reason in (pb.FINISH_REASON_ERROR, pb.FINISH_REASON_CANCELLED):
        raise Failed(message or pb.FinishReason.Name(reason))


def pieces_of(output: pb.BackendOutput) -> list[Piece]:
    """What one output tells. Raises Failed."""
    check_reason(output.finish_reason, output.error_message)
    pieces: list[Piece] = [Delivery(len(output.token_ids))]
    if output.HasField("completion_usage"):
        usage = output.completion_usage
        pieces.append(Used(usage.prompt_tokens, usage.completion_tokens))
    return pieces


def tokenized(job: Job, tokenizer: BackendTokenizer) -> Job:
    """The same job with token ids. Raises ValueError and LookupError."""
    if job.token_ids:
        return job
    if job.text:
        return Job(job.max_tokens, token_ids=tuple(tokenizer.encode(job.text)))
    messages = [{"role": role, "content": content} for role, content in job.messages]
    return Job(job.max_tokens, token_ids=tuple(tokenizer.encode_chat(messages)))
