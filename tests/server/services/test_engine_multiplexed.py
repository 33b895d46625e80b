"""GenerateMultiplexed, over a real socket: the same answers, handles, aborts, ends of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from enginewire import v1 as pb
from tests.server.serving import (
    Advertising,
    Answer,
    abort_frame,
    ask,
    collect,
    detail_of,
    in_one_frame,
    rest_of,
    rows,
    seconds,
    submit,
)

SLOW = {"mocker_itl_ms": 20.0}


def mixed_requests(count: int) -> Iterator[pb.GenerateRequest]:
    """Requests of all kinds: choices, seeds, temperatures, logprobs, stops, lengths."""
    for i in range(count):
        request = ask(f"r{i}", prompt=bytes([65 + i, 66, 67 + i % 5]), max_tokens=1 + 7 * i % 40)
        fields = request.request
        fields.sampling_options.n = 1 + i % 3
        fields.sampling_options.seed = i
        fields.sampling_options.temperature = (0.0, 0.8, 1.5)[i % 3]
        if i % 4 == 1:
            fields.output_options.logprobs = i % 3
        if i % 5 == 2:
            fields.stop_conditions.stop_token_ids.append(66)
        yield request


def plain(answer: Answer, choices: int) -> object:
    """What must be equal whichever way an answer travelled: not how its tokens were grouped."""
    assert answer.failure is None
    rows_of_logprobs = [
        (output.index, output.first_output_position, output.logprobs.SerializeToString())
        for output in answer.outputs
        if output.HasField("logprobs")
    ]
    stops = {output.index: output.stop_match.token_id for output in answer.outputs if output.finish_reason}
    tokens = [answer.tokens(index) for index in range(choices)]
    usage = [
        output.completion_usage.SerializeToString()
        for output in answer.outputs
        if output.HasField("completion_usage")
    ]
    return tokens, answer.finishes(), stops, usage, sorted(rows_of_logprobs)


async def test_both_ways_give_the_same_answers_to_64_requests_at_once(engine_server):
    serving = await engine_server(mocker_itl_ms=2.0, max_num_seqs=32)
    requests = list(mixed_requests(64))
    single = await asyncio.gather(*map(serving.generate, requests))
    shared = await serving.multiplexed(submit(handle, request) for handle, request in enumerate(requests))
    for handle, request in enumerate(requests):
        choices = request.request.sampling_options.n
        assert plain(shared[handle], choices) == plain(single[handle], choices)


async def test_accepted_comes_before_the_first_token_with_the_life_and_the_id(engine_server):
    serving = await engine_server(mocker_ttft_ms=200.0)
    call = serving.engine.GenerateMultiplexed(iter([submit(7, ask("r7", max_tokens=2))]))
    frame = await call.read()
    assert not frame.handles
    assert frame.events[0].handle == 7
    assert frame.events[0].accepted.request_id == "r7"
    info = await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())
    assert frame.events[0].accepted.engine_lifetime_id == info.engine_lifetime_id
    assert [len(frame.token_ids) async for frame in rest_of(call)] == [1, 0]


async def test_a_rejection_ends_its_handle_and_not_the_stream(engine_server):
    serving = await engine_server()
    bad = pb.GenerateRequest(request_id="bad", request=pb.PreprocessedRequest())
    answers = await serving.multiplexed([submit(1, bad), submit(2, ask(max_tokens=2))])
    assert answers[1].failure.field == "token_ids"
    assert not answers[1].outputs
    assert answers[2].usage() == (5, 2)


async def test_a_live_id_is_refused_on_its_own_handle(engine_server):
    serving = await engine_server(**SLOW)
    answers = await serving.multiplexed([submit(1, ask("same")), submit(2, ask("same"))])
    assert answers[1].usage() == (5, 8)
    assert answers[2].failure.reason == pb.ERROR_REASON_DUPLICATE_ID


async def test_a_live_handle_ends_the_stream(engine_server):
    serving = await engine_server(**SLOW)
    call = serving.engine.GenerateMultiplexed(iter([submit(1, ask("a")), submit(1, ask("b"))]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    detail = detail_of(caught.value)
    assert detail.reason == pb.ERROR_REASON_INVALID_REQUEST
    assert detail.field == "submits.handle"
    await serving.until_idle()


async def test_a_handle_may_be_used_again_after_its_last_event(engine_server):
    serving = await engine_server()
    call = serving.engine.GenerateMultiplexed()
    for i in range(3):
        await call.write(submit(1, ask(f"r{i}", max_tokens=2)))
        while not any(event.output.finish_reason for event in (await call.read()).events):
            pass
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_malformed_bytes_end_the_stream_and_its_requests(engine_server):
    serving = await engine_server(**SLOW)
    raw = serving.channel.stream_stream("/enginewire.v1.EngineService/GenerateMultiplexed")
    call = raw(iter([submit(1, ask(max_tokens=100_000)).SerializeToString(), b"\xff\xff\xff"]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert detail_of(caught.value).reason == pb.ERROR_REASON_INVALID_REQUEST
    await serving.until_idle()


async def test_aborted_handles_end_with_cancelled_and_usage_while_others_go_on(engine_server):
    serving = await engine_server(**SLOW)
    call = serving.engine.GenerateMultiplexed()
    await call.write(submit(1, ask("a", max_tokens=100_000, sampling_options=pb.SamplingOptions(n=2))))
    await call.write(submit(2, ask("b", max_tokens=10)))
    await serving.until(lambda load: load.tokens_generated > 6)
    await call.write(abort_frame(1, 99))
    await call.done_writing()
    answers = await collect(call)
    assert answers[1].finishes() == dict.fromkeys(range(2), pb.FINISH_REASON_CANCELLED)
    assert answers[1].usage() == (5, len(answers[1].tokens(0)) + len(answers[1].tokens(1)))
    assert answers[2].finishes() == {0: pb.FINISH_REASON_LENGTH}


async def test_in_one_frame_submits_take_effect_before_aborts(engine_server):
    serving = await engine_server(**SLOW)
    frame = in_one_frame([submit(1, ask(max_tokens=100_000)), abort_frame(1)])
    answers = await serving.multiplexed([frame])
    assert answers[1].finishes() == {0: pb.FINISH_REASON_CANCELLED}


async def test_half_closing_lets_live_requests_finish(engine_server):
    serving = await engine_server(**SLOW)
    answers = await serving.multiplexed(submit(i, ask(f"r{i}", max_tokens=10)) for i in range(3))
    assert [answers[i].usage() for i in range(3)] == [(5, 10)] * 3


async def test_a_cancelled_stream_frees_its_requests(engine_server):
    serving = await engine_server(max_num_seqs=2, **SLOW)
    call = serving.engine.GenerateMultiplexed()
    for i in range(4):
        await call.write(submit(i, ask(f"r{i}", max_tokens=100_000)))
    await serving.until(lambda load: (load.running, load.waiting) == (2, 2))
    call.cancel()
    await serving.until_idle()


async def test_the_deadline_of_the_stream_is_the_deadline_of_its_requests(engine_server):
    serving = await engine_server(**SLOW)
    call = serving.engine.GenerateMultiplexed(timeout=0.2)
    await call.write(submit(1, ask(max_tokens=100_000)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(rest_of(call))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await serving.until_idle()


async def test_a_timeout_ends_its_request_queued_or_running_with_a_status(engine_server):
    serving = await engine_server(max_num_seqs=1, **SLOW)
    answers = await serving.multiplexed(
        [
            submit(1, ask("runs", max_tokens=100_000), timeout=seconds(0.3)),
            submit(2, ask("waits", max_tokens=100_000), timeout=seconds(0.1)),
        ]
    )
    assert answers[1].failure.reason == answers[2].failure.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED
    assert answers[1].tokens()
    assert not answers[2].tokens()


async def test_a_timeout_that_is_not_positive_is_refused(engine_server):
    serving = await engine_server()
    answers = await serving.multiplexed(
        [submit(1, ask(), timeout=seconds(0)), submit(2, ask("b"), timeout=seconds(-1))]
    )
    assert answers[1].failure.field == answers[2].failure.field == "submits.timeout"


async def test_metadata_of_a_submit_is_its_own(engine_server):
    serving = await engine_server(Advertising(data_parallel=True))
    answers = await serving.multiplexed(
        [
            submit(1, ask("a"), metadata={"enginewire-dp-rank": "9"}),
            submit(2, ask("b"), metadata={"enginewire-dp-rank": "0", "traceparent": "garbage"}),
        ]
    )
    assert answers[1].failure.field == "routing.dp_rank"
    assert answers[2].usage() == (5, 8)


async def test_an_empty_stream_ends_with_ok(engine_server):
    serving = await engine_server()
    assert await serving.multiplexed([]) == {}
    assert await serving.multiplexed([pb.GenerateMultiplexedRequest()]) == {}


async def test_a_step_of_many_requests_is_one_frame(engine_server):
    serving = await engine_server(**SLOW)
    # So many tokens that all run at the same time, however slowly the machine lets them begin.
    call = serving.engine.GenerateMultiplexed(
        iter([submit(i, ask(f"r{i}", max_tokens=60)) for i in range(20)])
    )
    frames = [frame async for frame in call if frame.handles]
    assert max(len(rows(frame)) for frame in frames) == 20
    steps = [frame.step for frame in frames]
    assert len(steps) == len(set(steps))


async def test_a_connection_forgets_handles_that_have_ended(engine_server, monkeypatch):
    sessions = []
    from enginewire.server.services import engine as servicer

    class Remembered(servicer.MultiplexedSession):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            sessions.append(self)

    monkeypatch.setattr(servicer, "MultiplexedSession", Remembered)
    serving = await engine_server()
    await serving.multiplexed(submit(i, ask(f"r{i}", max_tokens=1)) for i in range(50))
    assert sessions[0].connection.live == {}
