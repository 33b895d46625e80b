"""`vllm.grpc.engine.VllmEngine`, the service that the SMG gateway calls, on top of the backend.

Holds what can be served here; every other method of the service is UNIMPLEMENTED. Knows nothing about
sockets and nothing about the shape of SMG's messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import grpc
from smg_grpc_proto.generated import common_pb2 as common, vllm_engine_pb2 as vllm

from enginewire import v1 as pb
from enginewire.access.caller import caller
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.embedding import renamed
from enginewire.backend.engines.failure import RequestFailed, failed, internal_failure
from enginewire.backend.frontends.calls import AnyCall, answered, refuse, trace_of, unary, writing
from enginewire.backend.frontends.patient_writer import DEFAULT_PATIENCE_SECONDS, patient
from enginewire.backend.frontends.smg.answer import Answer
from enginewire.backend.frontends.smg.facts import loads, model_info, server_info, tokenizer_chunks
from enginewire.backend.frontends.smg.request import INPUT, to_backend, token_ids_of
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import read_files

SERVICE: Final = "vllm.grpc.engine.VllmEngine"
FACTS_TIMEOUT_SECONDS: Final = 2.0

Result = TypeVar("Result")


class SmgServicer:
    """One worker. `folder` has the tokenizer when it does not come from the engine."""

    def __init__(
        self,
        backend: TextBackend,
        timeout: float | None,
        folder: Path | None,
        slow_consumer_timeout: float = DEFAULT_PATIENCE_SECONDS,
    ) -> None:
        """In seconds: `timeout` is for callers without a deadline, the other for those who stall."""
        self._backend = backend
        self._default_timeout = timeout
        self._folder = folder
        self._slow_consumer_timeout = slow_consumer_timeout
        self._began = time.monotonic()
        # With their owners.
        self._live: dict[str, tuple[asyncio.Timeout, str]] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a gRPC server registers."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Generate": writing(self.Generate, vllm.GenerateRequest),
                "Embed": unary(self.Embed, vllm.EmbedRequest),
                "Abort": unary(self.Abort, vllm.AbortRequest),
                "HealthCheck": unary(self.HealthCheck, vllm.HealthCheckRequest),
                "GetModelInfo": unary(self.GetModelInfo, vllm.GetModelInfoRequest),
                "GetServerInfo": unary(self.GetServerInfo, vllm.GetServerInfoRequest),
                "GetLoads": unary(self.GetLoads, vllm.GetLoadsRequest),
                "GetTokenizer": writing(self.GetTokenizer, common.GetTokenizerRequest),
            },
        )

    async def Generate(self, asked: vllm.GenerateRequest, call: AnyCall) -> None:
        """Stream what the choices become. Cancelling the call, or Abort, aborts the request."""
        await answered(self._unless_aborted(asked.request_id, self._generate(asked, call)), call)

    async def Embed(self, asked: vllm.EmbedRequest, call: AnyCall) -> vllm.EmbedResponse:
        """The vector of one input. Cancelling the call, or Abort, ends the work."""
        return await answered(self._unless_aborted(asked.request_id, self._embed(asked, call)), call)

    async def _unless_aborted(self, request_id: str, work: Awaitable[Result]) -> Result:
        """What `work` gives. Raises RequestFailed when Abort names the request first."""
        running = asyncio.timeout(None)
        mine = running, caller().identity
        try:
            async with running:
                # The first of two equal ids keeps its place; the engine refuses the other.
                self._live.setdefault(request_id, mine)
                return await work
        except TimeoutError as error:
            if not running.expired():
                raise
            raise aborted() from error
        finally:
            if self._live.get(request_id) is mine:
                del self._live[request_id]

    async def _embed(self, asked: vllm.EmbedRequest, call: AnyCall) -> vllm.EmbedResponse:
        """Raises InvalidPrompt and RequestFailed."""
        inputs = [token_ids_of(asked.tokenized)]
        rest, timeout = pb.PreprocessedEmbeddingRequest(), self._timeout(call)
        try:
            embeddings = await self._backend.embed(
                inputs,
                rest,
                path=INPUT,
                request_id=asked.request_id,
                timeout=timeout,
                metadata=trace_of(call),
            )
        except RequestFailed as error:
            raise renamed(error, f"{INPUT}[0]", INPUT) from error
        (vector,) = embeddings.vectors
        return vllm.EmbedResponse(
            embedding=vector, prompt_tokens=embeddings.prompt_tokens, embedding_dim=len(vector)
        )

    async def _generate(self, asked: vllm.GenerateRequest, call: AnyCall) -> None:
        """Raises InvalidPrompt and RequestFailed."""
        request = to_backend(asked)
        # The gateway waits for the beginning of an answer; the first token may be far away.
        await call.send_initial_metadata(())
        answer = Answer(len(request.request.token_ids), is_stream=asked.stream)
        timeout, trace = self._timeout(call), trace_of(call)
        items = self._backend.generate(request, timeout=timeout, metadata=trace, face="SMG")
        async with patient(call, self._slow_consumer_timeout) as caller, aclosing(items):
            async for item in items:
                if item.error is not None:
                    raise RequestFailed(item.error)
                if item.data is not None:
                    for response in answer.responses(checked(item.data)):
                        await caller.write(response)

    def _timeout(self, call: AnyCall) -> float | None:
        remaining = call.time_remaining()
        return self._default_timeout if remaining is None else max(0.0, remaining)

    async def Abort(self, asked: vllm.AbortRequest, call: AnyCall) -> vllm.AbortResponse:
        """End requests by id. One that is unknown, or over, is nothing to end."""
        for request_id in asked.request_ids:
            running, owner = self._live.get(request_id, (None, ""))
            if running is not None and caller().may_end(owner):
                del self._live[request_id]
                running.reschedule(asyncio.get_running_loop().time())
        return vllm.AbortResponse()

    async def HealthCheck(self, asked: vllm.HealthCheckRequest, call: AnyCall) -> vllm.HealthCheckResponse:
        """Healthy while the engine accepts requests."""
        try:
            state = (await self._backend.backend.client.load(timeout=FACTS_TIMEOUT_SECONDS)).state
        except RequestFailed:
            state = pb.ENGINE_STATE_DEAD
        name = pb.EngineState.Name(state) if state in pb.EngineState.values() else str(state)
        return vllm.HealthCheckResponse(healthy=state == pb.ENGINE_STATE_READY, message=name)

    async def GetModelInfo(self, asked: vllm.GetModelInfoRequest, call: AnyCall) -> vllm.GetModelInfoResponse:
        """What the engine serves."""
        return model_info(await self._config(call))

    async def GetServerInfo(
        self, asked: vllm.GetServerInfoRequest, call: AnyCall
    ) -> vllm.GetServerInfoResponse:
        """What runs here."""
        uptime = time.monotonic() - self._began
        return server_info(await self._config(call), await self._load(call), uptime)

    async def GetLoads(self, asked: vllm.GetLoadsRequest, call: AnyCall) -> vllm.GetLoadsResponse:
        """How busy the engine is."""
        timestamp = datetime.now(UTC).isoformat()
        return loads(await self._config(call), await self._load(call), timestamp)

    async def GetTokenizer(self, asked: common.GetTokenizerRequest, call: AnyCall) -> None:
        """The tokenizer's files in one archive."""
        try:
            files = await self._tokenizer_files()
            async with patient(call, self._slow_consumer_timeout) as caller:
                for chunk in tokenizer_chunks(files):
                    await caller.write(chunk)
        except RequestFailed as error:
            await refuse(call, error)

    async def _config(self, call: AnyCall) -> pb.EngineConfig:
        try:
            return (await self._backend.backend.client.info(FACTS_TIMEOUT_SECONDS)).config
        except RequestFailed as error:
            await refuse(call, error)

    async def _load(self, call: AnyCall) -> pb.Load:
        try:
            return await self._backend.backend.client.load(FACTS_TIMEOUT_SECONDS)
        except RequestFailed as error:
            await refuse(call, error)

    async def _tokenizer_files(self) -> dict[str, bytes]:
        """Raises RequestFailed."""
        if self._folder is not None:
            return await asyncio.to_thread(read_files, self._folder)
        return await self._backend.backend.client.tokenizer_files()


def checked(output: BackendOutput) -> BackendOutput:
    """The same output. Raises RequestFailed for a choice that the engine could not finish."""
    if output.finish_reason != pb.FINISH_REASON_ERROR:
        return output
    raise RequestFailed(internal_failure(output.error_message or "the engine failed"))


def aborted() -> RequestFailed:
    """What is left to say to a caller who has asked for it."""
    return failed(grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED, "the request was aborted")
