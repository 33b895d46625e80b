"""The Backend: a tokenized request in, annotated text out.

Sends the engine what is the engine's, keeps stop strings and text to itself, and turns whatever can go
wrong into one last annotated error. Knows nothing about prompts as text or about faces.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.access.meters import NOTHING, Meters, Need
from enginewire.backend.activity.activity import Activity
from enginewire.backend.activity.live_request import LiveRequest
from enginewire.backend.decoding.annotated import Annotated, BackendOutput, Failure, annotated_event
from enginewire.backend.decoding.protocol_violation import ProtocolViolation
from enginewire.backend.decoding.request_decoder import RequestDecoder
from enginewire.backend.decoding.stop_conditions import InvalidStopConditions, StopConditions
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.embedding import Embeddings, embed
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.opaque_fields import check_opaque
from enginewire.backend.engines.stream import Chunk
from enginewire.backend.inline_decoder import Inline, InlineDecoder, RequestTracker
from enginewire.backend.replay.attempts import Attempts
from enginewire.backend.replay.backend_call import BackendCall
from enginewire.backend.replay.retry import RetryBudget, RetryPolicy
from enginewire.backend.replay.sharing import in_name_of_caller, need_of, take
from enginewire.backend.replay.traces.trace import Tracing

log = logging.getLogger(__name__)

NS_PER_SECOND: Final = 1_000_000_000


class Backend:
    """The text side of one engine, or of several that serve the same model."""

    def __init__(
        self,
        engines: EngineClient | Endpoints,
        vocabulary: Vocabulary,
        *,
        validate_engine_decode: bool = False,
        retry: RetryPolicy | None = None,
        prefill: Endpoints | None = None,
    ) -> None:
        """Without `retry` every failure is the caller's. It needs `Endpoints` that were entered.

        With `validate_engine_decode` text is always made here, and what an engine says of its tokens is
        compared: a difference is logged, once for each request and kind, and counted.
        `prefill` are the engines that compute the prompts when `engines` only go on from there.
        """
        self.engines = Endpoints([engines]) if isinstance(engines, EngineClient) else engines
        self.vocabulary = vocabulary
        self.activity = Activity()
        self.meters = Meters()
        self.tracing = Tracing()
        self._validate_engine_decode = validate_engine_decode
        self._retry = retry
        self._prefill = prefill
        self.retry_budget = RetryBudget()

    @property
    def client(self) -> EngineClient:
        """That of an engine that takes requests, if one does. Raises RequestFailed where there is none."""
        return self.engines.client

    @property
    def clients(self) -> Sequence[EngineClient]:
        """Those of all engines, of the ones that only compute prompts too."""
        endpoints = [*self.engines.all, *(self._prefill.all if self._prefill else ())]
        return [endpoint.client for endpoint in endpoints]

    async def generate(
        self,
        request: pb.PreprocessedRequest,
        *,
        request_id: str = "",
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        with_tokens: bool = False,
        tracker: RequestTracker | None = None,
        inline: Inline | None = None,
        face: str = "",
    ) -> AsyncIterator[Annotated[BackendOutput]]:
        """Outputs until every choice has ended, or a last item with an error.

        A request with `resume` goes on with an answer that another backend has begun: the text which that
        one withheld comes first. An event `migrated` says that another engine goes on from here; its comment
        is how many were tried before. Closing the iterator aborts the request. `timeout` in seconds covers
        everything; `with_tokens` fills BackendOutput.tokens; `face` is the way by which the request came.
        What the engine answers to `annotations` are events as well, each in its place.

        With `inline`, outputs of nothing but text and tokens that arrive while the next item is awaited are
        given to it at once, and only the others are yielded as items: callers save the switch to their task
        for each token. Once it has returned True, what arrives waits until the next item is asked for. What
        it raises is raised here.
        """
        tracker = tracker or RequestTracker()
        deadline = None if timeout is None else time.monotonic() + timeout
        call = BackendCall(request, request_id, deadline, in_name_of_caller(metadata))
        trace = self.tracing.begin(metadata, request, face)
        attempts = Attempts(
            self.engines,
            call,
            lambda config: self._decoder(request, config, with_tokens),
            self._retry,
            self.retry_budget,
            self._prefill,
            trace,
        )
        live = self.activity.begin(attempts, request, face)
        ticket = NOTHING
        inlined: InlineDecoder | None = None
        try:
            check_opaque(request)
            ticket = take(self.meters, need_of(request))
            while not attempts.is_finished:
                try:
                    chunks = await (inlined.read(attempts) if inlined else attempts.read())
                except RequestFailed as failure:
                    goes_on = attempts.recover(failure)
                    live.retry(is_continued=goes_on)
                else:
                    goes_on = False
                    items, violation = decode(attempts.decoder, chunks, tracker)
                    live.add([item.data for item in items if item.data is not None])
                    self._tell_differences(live, attempts.decoder)
                    for item in items:
                        yield item
                    if violation is not None:
                        raise violation
                    if inlined is not None and inlined.error is not None:
                        raise inlined.error
                    if inlined is None and inline is not None:
                        inlined = InlineDecoder(attempts.decoder, live, tracker, inline)
                if goes_on:
                    yield Annotated(event="migrated", comment=[str(attempts.number)])
            attempts.succeed()
        except (RequestFailed, ProtocolViolation, InvalidStopConditions) as error:
            live.failure = _failure_of(error)
            trace.fail(live.failure)
            yield Annotated(error=live.failure)
        finally:
            ticket.close(live.num_tokens)
            ended = self.activity.end(live, tracker.detokenize_ns / NS_PER_SECOND)
            attempts.end("the caller left or has everything")
            outcome = "" if live.failure else ended.outcome
            trace.end(ended.request_id, ended.num_prompt_tokens, ended.num_tokens, outcome, ended.ttft)
            tracker.engine_lifetime_id = attempts.engine_lifetime_id

    async def embed(
        self,
        request: pb.PreprocessedEmbeddingRequest,
        *,
        request_id: str = "",
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Embeddings:
        """One vector per input, checked. Raises RequestFailed.

        Cancelling it ends the work of the engines. `timeout` in seconds covers everything.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        call = BackendCall(request, request_id, deadline, in_name_of_caller(metadata))
        num_prompt_tokens = sum(len(each.token_ids) for each in request.token_ids)
        ticket = take(self.meters, Need(1, num_prompt_tokens, num_prompt_tokens))
        trace = self.tracing.begin(metadata, request)
        try:
            return await embed(self.engines, call, self._retry, self.retry_budget, trace)
        except RequestFailed as error:
            trace.fail(error.failure)
            raise
        finally:
            ticket.close(0)
            trace.end(request_id, num_prompt_tokens, 0, "", None)

    def _decoder(
        self, request: pb.PreprocessedRequest, config: pb.EngineConfig, with_tokens: bool
    ) -> RequestDecoder:
        decoder = RequestDecoder(
            self.vocabulary,
            conditions_of(request, config),
            num_choices=max(1, request.sampling_options.n),
            prompt=request.token_ids,
            vocab_size=config.vocab_size or None,
            skip_special_tokens=_skip_special_tokens(request.output_options),
            with_tokens=with_tokens,
            validate_engine_decode=self._validate_engine_decode,
            is_guided=request.sampling_options.HasField("guided_decoding"),
        )
        if request.HasField("resume"):
            decoder.go_on(request.resume)
        return decoder

    def _tell_differences(self, live: LiveRequest, decoder: RequestDecoder) -> None:
        if not self._validate_engine_decode:
            return
        for kind, what in decoder.differences.items():
            if live.differs(kind):
                log.warning("request %r: the engine's %s %s", live.request_id, kind.replace("_", " "), what)


def decode(
    decoder: RequestDecoder, chunks: list[Chunk], tracker: RequestTracker
) -> tuple[list[Annotated[BackendOutput]], ProtocolViolation | None]:
    """Everything that arrived at once as items, up to a violation of the contract."""
    begin = time.perf_counter_ns()
    items: list[Annotated[BackendOutput]] = []
    violation = None
    try:
        for chunk in chunks:
            if chunk.event is not None:
                items.append(annotated_event(chunk.event))
                continue
            tracker.num_tokens += len(chunk.token_ids)
            output = (
                decoder.process_tokens(chunk.index, chunk.first_output_position, chunk.token_ids)
                if chunk.output is None
                else decoder.process(chunk.output)
            )
            if output is not None:
                items.append(Annotated(output))
            if decoder.is_finished:
                break
    except ProtocolViolation as error:
        violation = error
    tracker.detokenize_ns += time.perf_counter_ns() - begin
    return items, violation


def conditions_of(request: pb.PreprocessedRequest, config: pb.EngineConfig) -> StopConditions:
    """Everything that ends a choice. Raises InvalidStopConditions."""
    asked = request.stop_conditions
    return StopConditions(
        max_tokens=asked.max_tokens if asked.HasField("max_tokens") else None,
        min_tokens=asked.min_tokens,
        stop=tuple(asked.stop),
        stop_token_ids=frozenset(asked.stop_token_ids),
        stop_token_ids_visible=frozenset(asked.stop_token_ids_visible),
        stop_token_ids_hidden=frozenset(asked.stop_token_ids_hidden),
        eos_token_ids=frozenset(request.eos_token_ids or config.eos_token_ids),
        ignore_eos=asked.ignore_eos,
        include_stop_str_in_output=request.sampling_options.include_stop_str_in_output,
    )


def _skip_special_tokens(options: pb.OutputOptions) -> bool:
    return options.skip_special_tokens if options.HasField("skip_special_tokens") else True


def _failure_of(error: RequestFailed | ProtocolViolation | InvalidStopConditions) -> Failure:
    if isinstance(error, RequestFailed):
        return error.failure
    if isinstance(error, ProtocolViolation):
        return Failure(grpc.StatusCode.INTERNAL.value[0], pb.ERROR_REASON_PROTOCOL_VIOLATION, str(error))
    return Failure(
        grpc.StatusCode.INVALID_ARGUMENT.value[0],
        pb.ERROR_REASON_INVALID_REQUEST,
        str(error),
        field=error.field,
    )
