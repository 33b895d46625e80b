from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.failure import DETAILS_KEY
from enginewire.backend.frontends.calls import answered, invalid
from enginewire.backend.frontends.grpc_service import BackendServicer
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.patience import PATIENCE_SECONDS

METHOD = "/enginewire.v1.BackendService/Generate"
Dial = Callable[[TextBackend], Awaitable[grpc.aio.Channel]]


@pytest.fixture
async def dial(socket_folder: Path) -> AsyncIterator[Dial]:
    """`await dial(backend)` is a channel to a BackendService on a real socket."""
    server = grpc.aio.server()
    target = f"unix:{socket_folder}/backend.sock"
    channels: list[grpc.aio.Channel] = []

    async def start(backend: TextBackend, **given: object) -> grpc.aio.Channel:
        server.add_generic_rpc_handlers((BackendServicer(backend, **given).handlers(),))
        server.add_insecure_port(target)
        await server.start()
        # Without probes the window of a stream stays small, and who does not read is soon noticed.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        channels.append(grpc.aio.insecure_channel(target, options=options))
        return channels[0]

    yield start
    for channel in channels:
        await channel.close()
    await server.stop(None)


def ask(text: str = "", **fields: object) -> pb.BackendServiceGenerateRequest:
    return pb.BackendServiceGenerateRequest(text=text, request=pb.PreprocessedRequest(**fields))


def endless(text: str) -> pb.BackendServiceGenerateRequest:
    return ask(text, stop_conditions=pb.StopConditions(ignore_eos=True))


async def items_of(
    channel: grpc.aio.Channel, asked: pb.BackendServiceGenerateRequest, **call: object
) -> list[pb.Annotated]:
    stub = pb.BackendServiceStub(channel)
    return [response.annotated async for response in stub.Generate(asked, **call)]


def text_of(items: list[pb.Annotated]) -> str:
    return "".join(item.data.text for item in items)


def detail_of(error: grpc.aio.AioRpcError) -> pb.ErrorDetail:
    trailers = dict(error.trailing_metadata())
    return unpacked(pb.Status.FromString(trailers[DETAILS_KEY]))


def unpacked(status: pb.Status) -> pb.ErrorDetail:
    detail = pb.ErrorDetail()
    assert status.details[0].Unpack(detail)
    return detail


async def test_text_a_conversation_and_token_ids_are_answered(text_backend: TextBackend, dial: Dial) -> None:
    channel = await dial(text_backend)
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")])
    ids = pb.PreprocessedRequest(token_ids=list("日本".encode()))
    assert text_of(await items_of(channel, ask("hé"))) == "hé"
    assert (
        text_of(await items_of(channel, pb.BackendServiceGenerateRequest(chat=chat)))
        == "user: hi\nassistant: "
    )
    assert (
        text_of(await items_of(channel, pb.BackendServiceGenerateRequest(token_ids=True, request=ids)))
        == "日本"
    )


async def test_the_last_item_has_finish_reason_stop_and_usage(text_backend: TextBackend, dial: Dial) -> None:
    stops = pb.StopConditions(stop=["c d"])
    items = await items_of(await dial(text_backend), ask("ab c d e", stop_conditions=stops))
    last = items[-1].data
    assert text_of(items) == "ab "
    assert last.finish_reason == pb.FINISH_REASON_STOP
    assert last.stop_reason.text == "c d"
    assert (last.completion_usage.prompt_tokens, last.completion_usage.completion_tokens) == (8, 6)


async def test_the_prompt_is_told_when_it_was_asked_for(text_backend: TextBackend, dial: Dial) -> None:
    options = pb.OutputOptions(formatted_prompt=True, return_tokens_as_token_ids=True)
    items = await items_of(await dial(text_backend), ask("hi", output_options=options))
    assert [(item.event, list(item.comment)) for item in items[:2]] == [
        ("formatted_prompt", ["hi"]),
        ("token_ids", ["[104, 105]"]),
    ]
    assert text_of(items) == "hi"


async def test_annotations_are_answered_by_the_backend_and_then_by_the_engine(
    text_backend: TextBackend, dial: Dial
) -> None:
    annotations = ["echo:x", "token_ids", "unknown", "formatted_prompt"]
    items = await items_of(await dial(text_backend), ask("hi", annotations=annotations))
    assert [(item.event, list(item.comment)) for item in items if item.HasField("event")] == [
        ("formatted_prompt", ["hi"]),
        ("token_ids", ["[104, 105]"]),
        ("echo", ["x"]),
    ]
    assert [item.HasField("event") for item in items] == sorted(
        (item.HasField("event") for item in items), reverse=True
    )
    assert items[2].id
    assert text_of(items) == "hi"


@pytest.mark.parametrize(
    ("asked", "code", "field"),
    [
        (pb.BackendServiceGenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (ask(""), grpc.StatusCode.INVALID_ARGUMENT, "text"),
        (
            ask("x", stop_conditions=pb.StopConditions(stop=[""])),
            grpc.StatusCode.INVALID_ARGUMENT,
            "stop_conditions.stop[0]",
        ),
        (
            ask(
                "x",
                sampling_options=pb.SamplingOptions(temperature=-1),
                output_options={"formatted_prompt": True},
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
            "sampling_options.temperature",
        ),
        (ask("x", model="another"), grpc.StatusCode.NOT_FOUND, "model"),
    ],
)
async def test_what_is_refused_gets_a_status_with_details_and_no_item(
    text_backend: TextBackend,
    dial: Dial,
    asked: pb.BackendServiceGenerateRequest,
    code: grpc.StatusCode,
    field: str,
) -> None:
    call = pb.BackendServiceStub(await dial(text_backend)).Generate(asked)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        assert await call.read() is None
    assert refusal.value.code() is code
    assert detail_of(refusal.value).field == field


async def test_malformed_bytes_are_an_invalid_argument_with_details(
    text_backend: TextBackend, dial: Dial
) -> None:
    channel = await dial(text_backend)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await channel.unary_stream(METHOD)(b"\xff\xff\xff").read()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert detail_of(refusal.value).reason == pb.ERROR_REASON_INVALID_REQUEST
    assert text_of(await items_of(channel, ask("still here"))) == "still here"


async def test_a_failure_after_acceptance_is_the_last_item_and_status_ok(
    start_backend: StartBackend, dial: Dial
) -> None:
    backend, _ = await start_backend(mocker_fault="step:3")
    items = await items_of(await dial(backend), ask("abcdef"))
    assert text_of(items) == "ab"
    # On a slow machine both tokens come in one item.
    assert [item.HasField("error") for item in items[-2:]] == [False, True]
    assert items[-1].error.code == grpc.StatusCode.INTERNAL.value[0]
    assert unpacked(items[-1].error).reason == pb.ERROR_REASON_INTERNAL


async def test_an_unexpected_failure_is_internal_and_tells_nothing_about_itself(
    dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(TextBackend):
        def __init__(self) -> None:
            pass

        async def generate(self, asked: object, **given: object) -> AsyncIterator[object]:
            raise KeyError("secret prompt")
            yield

    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await items_of(await dial(Broken()), ask("x"))
    assert refusal.value.code() is grpc.StatusCode.INTERNAL
    message = refusal.value.details() or ""
    assert message.startswith("internal error ")
    assert message.removeprefix("internal error ") in caplog.text


async def test_a_caller_that_cancels_frees_the_engine(start_backend: StartBackend, dial: Dial) -> None:
    backend, serving = await start_backend(mocker_itl_ms=5.0)
    call = pb.BackendServiceStub(await dial(backend)).Generate(endless("abc"))
    assert (await call.read()).annotated.data.text == "a"
    assert (await serving.load()).kv_blocks_used > 0
    call.cancel()
    await serving.until_idle()


async def test_a_caller_that_stops_reading_and_cancels_frees_the_engine(
    start_backend: StartBackend, dial: Dial
) -> None:
    backend, serving = await start_backend()
    call = pb.BackendServiceStub(await dial(backend)).Generate(endless("a long prompt, repeated for ever"))
    await call.read()
    await asyncio.sleep(0.1)
    call.cancel()
    await serving.until_idle()


async def read_on(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_caller_that_stops_reading_is_ended_and_frees_the_engine(
    start_backend: StartBackend, dial: Dial
) -> None:
    backend, serving = await start_backend(max_model_len=100_000)
    stub = pb.BackendServiceStub(await dial(backend, slow_consumer_timeout=0.3))
    stops = pb.StopConditions(ignore_eos=True, max_tokens=60_000)
    call = stub.Generate(ask("x", stop_conditions=stops, output_options=pb.OutputOptions(logprobs=20)))
    await call.read()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while backend.backend.activity.live:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.02)
    await serving.until_idle()
    with pytest.raises(grpc.aio.AioRpcError) as stalled:
        await read_on(call)
    assert stalled.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert detail_of(stalled.value).reason == pb.ERROR_REASON_SLOW_CONSUMER


async def test_the_callers_deadline_reaches_the_engine(start_backend: StartBackend, dial: Dial) -> None:
    backend, serving = await start_backend(mocker_ttft_ms=30_000.0)
    try:
        items = await items_of(await dial(backend), ask("abc"), timeout=0.2)
        code = items[-1].error.code  # the engine's clock was quicker than the caller's own
    except grpc.aio.AioRpcError as error:
        code = error.code().value[0]
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    await serving.until_idle()


async def test_many_callers_at_once_get_their_own_text(text_backend: TextBackend, dial: Dial) -> None:
    channel = await dial(text_backend)
    prompts = [f"caller {i} says {'x' * i}" for i in range(48)]
    answers = await asyncio.gather(*(items_of(channel, ask(prompt)) for prompt in prompts))
    assert [text_of(items) for items in answers] == prompts


class LeftCall:
    """A call whose caller has left, which gRPC has not noticed yet: whatever is sent fails."""

    async def abort(self, code: grpc.StatusCode, message: str, trailers: object) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")


@pytest.mark.parametrize("error", [grpc.aio.InternalError("Failed execute_batch"), invalid("no")])
async def test_a_caller_that_leaves_before_it_is_answered_is_no_failure_of_ours(caplog, error) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(asyncio.CancelledError):
        await answered(work(), LeftCall())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
