"""Generate, over a real socket: acceptance, answers, rejections, deadlines."""

from __future__ import annotations

import asyncio
import random
import time

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server.services.engine import LIFETIME_KEY
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Advertising, ask, detail_of, rest_of

SLOW = {"mocker_itl_ms": 20.0}


async def test_generate_echoes_the_prompt_and_ends_with_usage(engine_server):
    serving = await engine_server()
    answer = await serving.generate(ask(prompt=b"hello", max_tokens=4))
    assert bytes(answer.tokens()) == b"hell"
    assert answer.finishes() == {0: pb.FINISH_REASON_LENGTH}
    assert answer.usage() == (5, 4)


async def test_choices_end_one_by_one_and_usage_counts_them_all(engine_server):
    serving = await engine_server()
    options = pb.SamplingOptions(n=3, seed=1, temperature=1.0)
    answer = await serving.generate(ask(max_tokens=5, sampling_options=options))
    assert answer.finishes() == dict.fromkeys(range(3), pb.FINISH_REASON_LENGTH)
    assert [len(answer.tokens(index)) for index in range(3)] == [5, 5, 5]
    assert answer.usage() == (5, 15)


async def test_the_lifetime_is_in_the_initial_metadata_and_the_first_message_only(engine_server):
    serving = await engine_server(**SLOW)
    info = await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())
    call = serving.engine.Generate(ask(max_tokens=3))
    metadata = await call.initial_metadata()
    lifetimes = [response.engine_lifetime_id async for response in call]
    assert metadata[LIFETIME_KEY] == info.engine_lifetime_id
    assert lifetimes == [info.engine_lifetime_id, *[""] * (len(lifetimes) - 1)]
    assert len(lifetimes) > 1


async def test_initial_metadata_comes_at_acceptance_before_the_first_token(engine_server):
    serving = await engine_server(mocker_ttft_ms=60_000.0)
    call = serving.engine.Generate(ask())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await call.initial_metadata()
    call.cancel()


async def test_a_rejection_is_trailers_only(engine_server):
    serving = await engine_server()
    call = serving.engine.Generate(pb.GenerateRequest(request_id="r1", request=pb.PreprocessedRequest()))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert detail_of(caught.value).field == "token_ids"
    assert LIFETIME_KEY not in await call.initial_metadata()


async def test_a_live_id_is_refused_and_usable_again_after_its_request_ended(engine_server):
    serving = await engine_server(**SLOW)
    first = serving.engine.Generate(ask("same", max_tokens=20))
    await first.initial_metadata()
    refused = await serving.generate(ask("same"))
    assert refused.failure.reason == pb.ERROR_REASON_DUPLICATE_ID
    assert sum([len(response.output.token_ids) async for response in first]) == 20
    assert (await serving.generate(ask("same", max_tokens=2))).usage() == (5, 2)


async def test_metadata_that_disagrees_with_the_body_is_refused(engine_server):
    serving = await engine_server(Advertising(data_parallel=True))
    request = ask(routing=pb.RoutingHints(dp_rank=0))
    answer = await serving.generate(request, metadata=(("enginewire-dp-rank", "1"),))
    assert answer.failure.reason == pb.ERROR_REASON_INVALID_REQUEST
    assert answer.failure.field == "routing.dp_rank"


async def test_unknown_metadata_text_and_binary_is_ignored(engine_server):
    serving = await engine_server()
    metadata = (
        ("traceparent", "garbage"),
        ("x-any", "1"),
        ("x-any-bin", b"\x00\xff"),
        ("enginewire-dp-rank-bin", b"1"),
    )
    assert (await serving.generate(ask(max_tokens=2), metadata=metadata)).usage() == (5, 2)


async def test_a_queued_request_whose_deadline_passes_never_starts(engine_server):
    serving = await engine_server(max_num_seqs=1, mocker_itl_ms=10.0)
    runs = serving.engine.Generate(ask("runs", max_tokens=100_000))
    await serving.until(lambda load: load.running == 1)
    begin = time.monotonic()
    answer = await generate_with_deadline(serving, ask("waits"), 0.2)
    assert 0.1 < time.monotonic() - begin < PATIENCE_SECONDS
    assert answer == grpc.StatusCode.DEADLINE_EXCEEDED
    load = await serving.until(lambda load: load.waiting == 0)
    assert load.running == 1
    runs.cancel()
    # All that finished are the one that was cancelled and the one that never began.
    load = await serving.until_idle()
    assert load.requests_finished == 2


async def test_a_running_request_whose_deadline_passes_is_freed(engine_server):
    serving = await engine_server(**SLOW)
    code = await generate_with_deadline(serving, ask(max_tokens=100_000), 0.2)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    await serving.until_idle()


async def generate_with_deadline(serving, request, timeout) -> grpc.StatusCode:
    call = serving.engine.Generate(request, timeout=timeout)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return caught.value.code()


@pytest.mark.parametrize("moment", ["queued", "prefill", "decode"])
async def test_a_cancelled_call_frees_its_slot_and_blocks(engine_server, moment):
    ttft = 60_000.0 if moment == "prefill" else 0.0
    serving = await engine_server(max_num_seqs=1, mocker_itl_ms=10.0, mocker_ttft_ms=ttft)
    calls = [serving.engine.Generate(ask("r0", max_tokens=100_000))]
    await serving.until(lambda load: load.running == 1)
    if moment == "queued":
        calls.append(serving.engine.Generate(ask("r1")))
        await serving.until(lambda load: load.waiting == 1)
    elif moment == "decode":
        await calls[0].read()
    begin = time.monotonic()
    calls[-1].cancel()
    await serving.until(lambda load: load.running + load.waiting == len(calls) - 1)
    assert time.monotonic() - begin < PATIENCE_SECONDS
    calls[0].cancel()


async def test_a_call_cancelled_after_its_terminal_changes_nothing(engine_server):
    serving = await engine_server()
    call = serving.engine.Generate(ask(max_tokens=2))
    while not (await call.read()).output.finish_reason:
        pass
    call.cancel()
    await serving.until_idle()
    assert (await serving.generate(ask(max_tokens=2))).usage() == (5, 2)


async def test_calls_cancelled_at_any_moment_leave_nothing_behind_and_nothing_in_the_log(
    engine_server, caplog
):
    serving = await engine_server(max_num_seqs=8, mocker_itl_ms=1.0)
    dice = random.Random(7)

    async def start_and_cancel(i: int) -> None:
        call = serving.engine.Generate(ask(f"r{i}", max_tokens=100_000))
        await asyncio.sleep(dice.random() * 0.1)
        call.cancel()

    await asyncio.gather(*map(start_and_cancel, range(300)))
    await serving.until_idle()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_closed_channel_frees_its_requests(engine_server):
    serving = await engine_server(**SLOW)
    other = grpc.aio.insecure_channel(serving.server.target, options=[("grpc.use_local_subchannel_pool", 1)])
    calls = [pb.EngineServiceStub(other).Generate(ask(f"r{i}", max_tokens=100_000)) for i in range(3)]
    await serving.until(lambda load: load.running == 3)
    await other.close()
    await serving.until_idle()
    assert all(call.cancelled() for call in calls)


async def test_a_reader_that_pauses_within_the_buffer_gets_everything(engine_server):
    serving = await engine_server(mocker_itl_ms=1.0)
    call = serving.engine.Generate(ask(max_tokens=300))
    received = len((await call.read()).output.token_ids)
    await serving.until_idle()
    async for response in rest_of(call):
        assert response.output.first_output_position == received
        received += len(response.output.token_ids)
    assert received == 300
    assert await call.code() == grpc.StatusCode.OK
