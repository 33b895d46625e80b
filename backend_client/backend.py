"""The Backend: a tokenized request in, annotated text out.

Sends the engine what is the engine's, keeps stop strings and text to itself, and turns whatever can go
wrong into one last annotated error. Knows nothing about prompts as text or about faces.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

import grpc

from backend_client.annotated import Annotated, BackendOutput, Failure
from backend_client.engine_client import EngineClient
from backend_client.engine_stream import Chunk, EngineStream
from backend_client.failure import RequestFailed, failed
from backend_client.request_decoder import ProtocolViolation, RequestDecoder
from backend_client.stop_conditions import InvalidStopConditions, StopConditions
from backend_client.vocabulary import Vocabulary
from enginewire import v1 as pb

# How long past its deadline a request may wait for the engine's own word on it.
DEADLINE_SLACK_SECONDS: Final = 0.5


@dataclass(slots=True)
class RequestTracker:
    """What one request cost in this process. Times in nanoseconds of time.perf_counter_ns."""

    detokenize_ns: int = 0
    num_tokens: int = 0
    engine_lifetime_id: str = ""


class Backend:
    """The text side of one engine."""

    def __init__(
        self, client: EngineClient, vocabulary: Vocabulary, *, validate_engine_decode: bool = False
    ) -> None:
        self.client = client
        self.vocabulary = vocabulary
        self._validate_engine_decode = validate_engine_decode

    async def generate(
        self,
        request: pb.PreprocessedRequest,
        *,
        request_id: str = "",
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        with_tokens: bool = False,
        tracker: RequestTracker | None = None,
    ) -> AsyncIterator[Annotated[BackendOutput]]:
        """Outputs until every choice has ended, or a last item with an error.

        Closing the iterator aborts the request. `timeout` in seconds covers everything; `with_tokens`
        fills BackendOutput.tokens.
        """
        tracker = tracker or RequestTracker()
        deadline = None if timeout is None else time.monotonic() + timeout
        stream: EngineStream | None = None
        try:
            decoder = await self._decoder(request, with_tokens, timeout)
            stream = await self.client.submit(
                pb.GenerateRequest(request_id=request_id or uuid.uuid4().hex, request=engine_part(request)),
                timeout=None if deadline is None else deadline - time.monotonic(),
                metadata=metadata,
            )
            while not decoder.is_finished:
                outputs, violation = decode(decoder, await _read(stream, deadline), tracker)
                for output in outputs:
                    yield Annotated(output)
                if violation is not None:
                    raise violation
        except RequestFailed as error:
            yield Annotated(error=error.failure)
        except ProtocolViolation as error:
            yield Annotated(error=_protocol_failure(error))
        except InvalidStopConditions as error:
            yield Annotated(error=_invalid(error))
        finally:
            if stream is not None:
                stream.abort("the caller left or has everything")
                if stream.accepted is not None:
                    tracker.engine_lifetime_id = stream.accepted.engine_lifetime_id

    async def _decoder(
        self, request: pb.PreprocessedRequest, with_tokens: bool, timeout: float | None
    ) -> RequestDecoder:
        config = (await self.client.info(timeout)).config
        return RequestDecoder(
            self.vocabulary,
            conditions_of(request, config),
            num_choices=max(1, request.sampling_options.n),
            num_prompt_tokens=len(request.token_ids) or None,
            vocab_size=config.vocab_size or None,
            skip_special_tokens=_skip_special_tokens(request.output_options),
            with_tokens=with_tokens,
            validate_engine_decode=self._validate_engine_decode,
        )


def decode(
    decoder: RequestDecoder, chunks: list[Chunk], tracker: RequestTracker
) -> tuple[list[BackendOutput], ProtocolViolation | None]:
    """The outputs of everything that arrived at once, up to a violation of the contract."""
    begin = time.perf_counter_ns()
    outputs: list[BackendOutput] = []
    violation = None
    try:
        for chunk in chunks:
            tracker.num_tokens += len(chunk.token_ids)
            output = (
                decoder.process_tokens(chunk.index, chunk.first_output_position, chunk.token_ids)
                if chunk.output is None
                else decoder.process(chunk.output)
            )
            if output is not None:
                outputs.append(output)
            if decoder.is_finished:
                break
    except ProtocolViolation as error:
        violation = error
    tracker.detokenize_ns += time.perf_counter_ns() - begin
    return outputs, violation


def engine_part(request: pb.PreprocessedRequest) -> pb.PreprocessedRequest:
    """The request without the fields that only a backend can honour."""
    part = pb.PreprocessedRequest()
    part.CopyFrom(request)
    part.stop_conditions.ClearField("stop")
    part.sampling_options.ClearField("include_stop_str_in_output")
    for field in ("skip_special_tokens", "formatted_prompt", "return_tokens_as_token_ids"):
        part.output_options.ClearField(field)
    return part


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


async def _read(stream: EngineStream, deadline: float | None) -> list[Chunk]:
    """What has arrived. Raises RequestFailed, also for a stream that ends too early or never."""
    if deadline is None or stream.ended:
        chunks = await stream.read()
    else:
        chunks = await _read_until(stream, deadline + DEADLINE_SLACK_SECONDS)
    if not chunks:
        raise failed(
            grpc.StatusCode.UNAVAILABLE,
            pb.ERROR_REASON_STREAM_INCOMPLETE,
            "the engine's stream ended without a terminal output",
            retryable=True,
        )
    return chunks


async def _read_until(stream: EngineStream, deadline: float) -> list[Chunk]:
    """As read, but an engine that ignores the deadline, silent or not, is not waited for."""
    left = deadline - time.monotonic()
    if left > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                return await stream.read()
    raise failed(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        pb.ERROR_REASON_DEADLINE_EXCEEDED,
        "the deadline passed and the engine went on",
    )


def _skip_special_tokens(options: pb.OutputOptions) -> bool:
    return options.skip_special_tokens if options.HasField("skip_special_tokens") else True


def _protocol_failure(error: ProtocolViolation) -> Failure:
    return Failure(grpc.StatusCode.INTERNAL.value[0], pb.ERROR_REASON_PROTOCOL_VIOLATION, str(error))


def _invalid(error: InvalidStopConditions) -> Failure:
    return Failure(
        grpc.StatusCode.INVALID_ARGUMENT.value[0],
        pb.ERROR_REASON_INVALID_REQUEST,
        str(error),
        field=error.field,
    )
