"""A small, correct backend to prove the client side of the kit with, written to be broken.

One engine, BackendService over gRPC, token ids as prompt. Mutants override single methods of it or of
`ReferenceChoice`. Text is in `text`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.failure import Failed, violation
from enginewire.conformance.client_side.reference.checks import Checks
from enginewire.conformance.client_side.reference.embedding import Embeddings
from enginewire.conformance.client_side.reference.text import ReferenceChoice, Vocabulary
from enginewire.conformance.client_side.stage.turn import TWINS
from enginewire.conformance.wire.exchange import DETAILS_KEY, LIFETIME_KEY
from enginewire.grpc_server import bare_server

ATTEMPTS: Final = 5
BACKOFF_SECONDS: Final = 0.02
TRACEPARENT: Final = "traceparent"
SERVICE: Final = "enginewire.v1.BackendService"
BACKEND_FIELDS: Final = {
    "stop_conditions": ("stop",),
    "sampling_options": ("include_stop_str_in_output",),
    "output_options": ("skip_special_tokens", "formatted_prompt", "return_tokens_as_token_ids"),
}

CONTEXT = grpc.aio.ServicerContext[Any, Any]
EngineCall = grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]
KNOWN_REASONS: Final = frozenset(pb.FinishReason.values())


class Request:
    """One request of a caller on its way through the engine."""

    def __init__(self, part: pb.PreprocessedRequest, choices: list[ReferenceChoice]) -> None:
        self.part = part
        self.choices = choices
        self.attempt = 0
        self.is_accepted = False
        self.lifetime_id = ""
        """Of the engine that has generated last."""
        self.asked_life = ""
        self.answered: set[str] = set()

    @property
    def is_finished(self) -> bool:
        """Every choice has ended."""
        return all(choice.finish for choice in self.choices)

    @property
    def has_delivered(self) -> bool:
        """The caller has seen something."""
        return any(choice.token_ids or choice.finish for choice in self.choices)


class ReferenceBackend(Checks, Embeddings):
    """The text side of one engine."""

    choice_class: type[ReferenceChoice] = ReferenceChoice
    channel_options: tuple[tuple[str, int], ...] = (("grpc.use_local_subchannel_pool", 1),)

    def __init__(self, engine: str) -> None:
        self._channel = grpc.aio.insecure_channel(engine, options=self.channel_options)
        self._engine = pb.EngineServiceStub(self._channel)
        self._discovery = pb.DiscoveryServiceStub(self._channel)
        self.embedding = pb.EmbeddingServiceStub(self._channel)

    async def serve(self, target: str) -> grpc.aio.Server:
        """Listen; returns the running server. Raises Failed for an engine that does not fit."""
        self.info = await self._discovery.GetEngineInfo(pb.GetEngineInfoRequest())
        self.revision = self.common_revision(self.info)
        self.vocabulary = await self._read_tokenizer()
        server = bare_server()
        handler = grpc.unary_stream_rpc_method_handler(
            self._serve_one,
            request_deserializer=pb.BackendServiceGenerateRequest.FromString,
            response_serializer=pb.BackendServiceGenerateResponse.SerializeToString,
        )
        embed = grpc.unary_unary_rpc_method_handler(
            self.embed,
            request_deserializer=pb.BackendServiceEmbedRequest.FromString,
            response_serializer=pb.BackendServiceEmbedResponse.SerializeToString,
        )
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Generate": handler, "Embed": embed}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
        server.add_insecure_port(target)
        await server.start()
        return server

    async def shut_down(self, server: grpc.aio.Server | None) -> None:
        """Stop listening and leave the engine."""
        if server:
            await server.stop(0)
        await self._channel.close()

    def common_revision(self, info: pb.GetEngineInfoResponse) -> int:
        """The newest revision that both know. Raises Failed without one."""
        common = min(pb.CONTRACT_REVISION, info.maximum_client_revision)
        if common >= max(info.minimum_client_revision, 1):
            return common
        raise Failed(grpc.StatusCode.FAILED_PRECONDITION, pb.ERROR_REASON_REVISION_MISMATCH, "too new")

    async def _read_tokenizer(self) -> Vocabulary:
        content = bytearray()
        async for piece in self._discovery.GetTokenizer(pb.GetTokenizerRequest()):
            if piece.chunk.name == "tokenizer.json":
                content += piece.chunk.data
        return Vocabulary.parse(bytes(content))

    async def _serve_one(
        self, asked: pb.BackendServiceGenerateRequest, context: CONTEXT
    ) -> AsyncIterator[pb.BackendServiceGenerateResponse]:
        request = Request(asked.request, self._choices(asked.request))
        try:
            self.check_request(asked.request)
            self.check_opaque(asked.request)
            self.check_workers(asked.request.routing)
            async for item in self.answer(asked, request, context):
                yield pb.BackendServiceGenerateResponse(annotated=item)
        except Failed as failure:
            async for item in self.report(failure, request, context):
                yield pb.BackendServiceGenerateResponse(annotated=item)

    async def report(
        self, failure: Failed, request: Request, context: CONTEXT
    ) -> AsyncIterator[pb.Annotated]:
        """A status before acceptance, a last item after it."""
        if not request.is_accepted:
            details = ((DETAILS_KEY, failure.status.SerializeToString()),)
            await context.abort(failure.code, failure.status.message, details)
        yield pb.Annotated(error=failure.status)

    async def answer(
        self, asked: pb.BackendServiceGenerateRequest, request: Request, context: CONTEXT
    ) -> AsyncIterator[pb.Annotated]:
        """Items until every choice has ended. Raises Failed."""
        while not request.is_finished:
            call = self.call(asked, request, context)
            try:
                async for item in self.outputs(call, request):
                    yield item
                if not request.is_finished:
                    self.end_without_terminal(request)
            except Failed as failure:
                if not self.may_go_on(failure, request):
                    raise
                await self.pause(failure, request)
            finally:
                self.leave(call, request)

    def call(self, asked: pb.BackendServiceGenerateRequest, request: Request, context: CONTEXT) -> EngineCall:
        """Send the request, or what is left of it."""
        request.attempt += 1
        suffix = f".{request.attempt}" if request.attempt > 1 else ""
        generate = pb.GenerateRequest(
            request_id=f"{asked.request_id}{suffix}",
            client_revision=self.revision,
            request=self.engine_part(request),
        )
        trace = self.trace(context)
        if request.attempt > 1 and trace:
            generate.request.migration_link.CopyFrom(self.link(trace))
        call: EngineCall = self._engine.Generate(
            generate, timeout=self.seconds_left(context), metadata=self.metadata(generate, context)
        )
        return call

    def metadata(self, generate: pb.GenerateRequest, context: CONTEXT) -> tuple[tuple[str, str], ...]:
        """The caller's trace, and what fields say once more for those who read headers only."""
        trace, routing = self.trace(context), generate.request.routing
        told = {field.name: value for field, value in routing.ListFields()}
        repeated = ((key, str(told[name])) for key, name in TWINS.items() if name in told)
        return (*(((TRACEPARENT, trace),) if trace else ()), *repeated)

    def trace(self, context: CONTEXT) -> str:
        """The caller's traceparent, "" without."""
        return str(dict(context.invocation_metadata() or ()).get(TRACEPARENT, ""))

    def link(self, trace: str) -> pb.TraceLink:
        """What the attempt before was sent under."""
        _, trace_id, span_id, _ = trace.split("-")
        return pb.TraceLink(trace_id=trace_id, span_id=span_id)

    def engine_part(self, request: Request) -> pb.PreprocessedRequest:
        """The request as an engine may see it."""
        part = pb.PreprocessedRequest()
        part.CopyFrom(request.part)
        if not self.engine_evaluates():
            for owner, names in BACKEND_FIELDS.items():
                for name in names:
                    getattr(part, owner).ClearField(name)
        part.annotations[:] = self.unanswered(request)
        if request.attempt > 1 and request.has_delivered:
            part.resume.CopyFrom(self.resume(request))
        return part

    def unanswered(self, request: Request) -> list[str]:
        """Annotations that had no event yet."""
        return [each for each in request.part.annotations if each.partition(":")[0] not in request.answered]

    def engine_evaluates(self) -> bool:
        """True when the engine gets the fields about text, and its text is shown."""
        return self.info.config.capabilities.stop_strings

    def resume(self, request: Request) -> pb.Resume:
        """Where the engine has to go on."""
        resume = pb.Resume(attempt=request.attempt - 1, origin_lifetime_id=request.lifetime_id)
        for choice in request.choices:
            choice.received = len(choice.token_ids)
            resume.choices.add(
                index=choice.index,
                generated_token_ids=choice.token_ids,
                finished=bool(choice.finish),
                cum_log_probs=choice.log_prob if request.part.output_options.HasField("logprobs") else None,
            )
        return resume

    def seconds_left(self, context: CONTEXT) -> float | None:
        """Of the caller's deadline."""
        return context.time_remaining()

    async def outputs(self, call: EngineCall, request: Request) -> AsyncIterator[pb.Annotated]:
        """What the caller gets of one call to the engine. Raises Failed."""
        try:
            async for response in call:
                if item := self.received(response, request):
                    yield item
                if request.is_finished:
                    return
        except grpc.aio.AioRpcError as error:
            raise self.failure_of(error, request) from error

    def received(self, response: pb.GenerateResponse, request: Request) -> pb.Annotated | None:
        """What the caller gets of one message of the engine."""
        request.is_accepted = True
        request.asked_life = response.engine_lifetime_id or request.asked_life
        request.lifetime_id = request.asked_life if response.output.token_ids else request.lifetime_id
        if response.HasField("engine_event"):
            request.answered.add(response.engine_event.event)
            return self.event(response.engine_event)
        output = self.take(response.output, request)
        return pb.Annotated(data=output) if output else None

    def event(self, event: pb.EngineEvent) -> pb.Annotated | None:
        """An event of the engine as it is."""
        item = pb.Annotated(event=event.event, comment=event.comment)
        if event.HasField("id"):
            item.id = event.id
        return item

    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        """One output of the engine; None when the caller wants nothing more of its choice."""
        self.check_output(output, request)
        choice = request.choices[output.index]
        choice.received += len(output.token_ids)
        choice.is_over = bool(output.finish_reason)
        if choice.finish:
            return None
        answer = choice.take(output)
        if request.is_finished:
            answer.completion_usage.CopyFrom(self.usage(request))
        return answer

    def check_output(self, output: pb.LLMEngineOutput, request: Request) -> None:
        """Raise Failed for an output that breaks the shape of the stream."""
        if output.index >= len(request.choices):
            raise violation("a choice that was not asked for")
        choice = request.choices[output.index]
        if choice.is_over:
            raise violation("output after a terminal")
        if output.first_output_position != choice.received:
            raise violation("a position out of order")
        if any(token >= self.info.config.vocab_size for token in output.token_ids):
            raise violation("an id outside of the vocabulary")
        if output.finish_reason not in KNOWN_REASONS:
            raise violation("an unknown finish reason")

    def usage(self, request: Request) -> pb.CompletionUsage:
        """Counted here, so that it is right wherever the answer ended."""
        prompt = len(request.part.token_ids)
        completion = sum(len(choice.token_ids) for choice in request.choices)
        return pb.CompletionUsage(
            prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
        )

    def end_without_terminal(self, request: Request) -> None:
        """The engine's stream ended with OK too early."""
        raise Failed(
            grpc.StatusCode.UNAVAILABLE,
            pb.ERROR_REASON_STREAM_INCOMPLETE,
            "no terminal output",
            retryable=True,
        )

    def may_go_on(self, failure: Failed, request: Request) -> bool:
        """True when the request may be sent again, from the start or from where it stands."""
        if not failure.retryable or request.attempt >= ATTEMPTS:
            return False
        if any(choice.is_engine_text for choice in request.choices):
            # Only the engine knows what it withheld.
            return False
        return not request.has_delivered or self.info.config.capabilities.resume

    async def pause(self, failure: Failed, request: Request) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(failure.retry_after + BACKOFF_SECONDS)

    def leave(self, call: EngineCall, request: Request) -> None:
        """Tell the engine that nobody waits any more."""
        call.cancel()

    def failure_of(self, error: grpc.aio.AioRpcError, request: Request) -> Failed:
        """What ended a call, with the engine's own details."""
        request.is_accepted |= self.was_accepted(error)
        return Failed.of(error)

    def was_accepted(self, error: grpc.aio.AioRpcError) -> bool:
        """The engine had sent its headers: a refusal has none, which gRPC shows as empty ones."""
        return any(key == LIFETIME_KEY for key, _ in error.initial_metadata() or ())

    def _choices(self, part: pb.PreprocessedRequest) -> list[ReferenceChoice]:
        eos = frozenset(part.eos_token_ids or self.info.config.eos_token_ids)
        return [
            self.choice_class(index, self.vocabulary, part, eos, self.engine_evaluates())
            for index in range(max(1, part.sampling_options.n))
        ]
