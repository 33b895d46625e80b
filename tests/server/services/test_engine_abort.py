"""Abort, over a real socket: by id, all, early, late; one outcome per id."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from tests.server.serving import abort_frame, ask, collect, detail_of, in_one_frame, submit

LONG = 100_000
SLOW = {"mocker_itl_ms": 10.0}


async def abort(serving, *request_ids: str, **fields: object) -> dict[str, int]:
    response = await serving.engine.Abort(pb.AbortRequest(request_ids=request_ids, **fields))
    return {result.request_id: result.outcome for result in response.results}


async def test_abort_ends_every_choice_with_cancelled_and_usage(engine_server):
    serving = await engine_server(**SLOW)
    options = pb.SamplingOptions(n=2)
    running = asyncio.create_task(serving.generate(ask("r1", max_tokens=LONG, sampling_options=options)))
    other = asyncio.create_task(serving.generate(ask("r10", max_tokens=30)))
    await serving.until(lambda load: load.running == 3 and load.tokens_generated > 3)
    assert await abort(serving, "r1") == {"r1": pb.ABORT_OUTCOME_ABORTED}
    answer = await running
    assert answer.finishes() == dict.fromkeys(range(2), pb.FINISH_REASON_CANCELLED)
    assert answer.usage() == (5, len(answer.tokens(0)) + len(answer.tokens(1)))
    assert (await other).finishes() == {0: pb.FINISH_REASON_LENGTH}


async def test_abort_of_a_queued_request_ends_it_without_a_token(engine_server):
    serving = await engine_server(max_num_seqs=1, **SLOW)
    runs = asyncio.create_task(serving.generate(ask("runs", max_tokens=LONG)))
    await serving.until(lambda load: load.running == 1)
    waits = asyncio.create_task(serving.generate(ask("waits")))
    await serving.until(lambda load: load.waiting == 1)
    await abort(serving, "waits")
    answer = await waits
    assert answer.tokens() == []
    assert answer.finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert answer.usage() == (5, 0)
    await abort(serving, "runs")
    await runs


async def test_abort_all_names_every_live_request_of_every_kind_of_call(engine_server):
    serving = await engine_server(**SLOW)
    single = asyncio.create_task(serving.generate(ask("a", max_tokens=LONG)))
    shared = asyncio.create_task(serving.multiplexed([submit(1, ask("b", max_tokens=LONG))]))
    await serving.until(lambda load: load.running == 2)
    assert await abort(serving, all=True) == dict.fromkeys("ab", pb.ABORT_OUTCOME_ABORTED)
    assert (await single).finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert (await shared)[1].finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert await abort(serving, all=True) == {}


async def test_outcomes_are_one_per_id_in_order(engine_server):
    serving = await engine_server(**SLOW)
    await serving.generate(ask("done", max_tokens=1))
    call = serving.engine.Generate(ask("live", max_tokens=LONG))
    await call.initial_metadata()
    response = await serving.engine.Abort(pb.AbortRequest(request_ids=["live", "never", "done", "live"]))
    assert [(result.request_id, result.outcome) for result in response.results] == [
        ("live", pb.ABORT_OUTCOME_ABORTED),
        ("never", pb.ABORT_OUTCOME_UNKNOWN),
        ("done", pb.ABORT_OUTCOME_FINISHED),
        ("live", pb.ABORT_OUTCOME_ABORTED),
    ]
    async for _ in call:
        pass


class Hesitant(MockerEngine):
    """Takes no note of an abort of "a" until it may."""

    def __init__(self) -> None:
        super().__init__(MockerOptions(itl_ms=10.0))
        self.may = asyncio.Event()

    async def abort(self, context: GenerateContext) -> None:
        if context.request_id == "a":
            await self.may.wait()
        await super().abort(context)


@pytest.mark.parametrize("way", ["Abort", "abort frame", "end of the stream"])
async def test_what_is_slow_to_abort_holds_up_nothing_that_is_aborted_with_it(engine_server, way):
    engine = Hesitant()
    serving = await engine_server(engine)
    requests = in_one_frame(submit(i, ask(name, max_tokens=LONG)) for i, name in enumerate("ab"))
    stream = serving.engine.GenerateMultiplexed()
    await stream.write(requests)
    reading = asyncio.create_task(collect(stream))
    await serving.until(lambda load: load.running == 2)
    ending = asyncio.create_task(abort(serving, "a", "b")) if way == "Abort" else None
    if way == "abort frame":
        await stream.write(abort_frame(0, 1))
    elif way == "end of the stream":
        stream.cancel()
    await serving.until(lambda load: load.running == 1)
    engine.may.set()
    stream.cancel()
    await asyncio.gather(reading, *filter(None, [ending]), return_exceptions=True)


async def test_abort_is_idempotent_after_the_end(engine_server):
    serving = await engine_server()
    await serving.generate(ask("a", max_tokens=1))
    for _ in range(3):
        assert await abort(serving, "a") == {"a": pb.ABORT_OUTCOME_FINISHED}


async def test_a_request_that_was_aborted_before_it_arrived_is_refused_either_way(engine_server):
    serving = await engine_server()
    await abort(serving, "a", "b")
    single = await serving.generate(ask("a"))
    shared = await serving.multiplexed([submit(1, ask("b"))])
    assert single.failure.reason == shared[1].failure.reason == pb.ERROR_REASON_CANCELLED
    assert (await serving.generate(ask("a"))).usage() == (5, 8)


@pytest.mark.parametrize(
    "request_",
    [
        pb.AbortRequest(),
        pb.AbortRequest(request_ids=["a"], all=True),
        pb.AbortRequest(request_ids=["a b"]),
        pb.AbortRequest(request_ids=["a"] * 16_385),
    ],
)
async def test_an_abort_that_says_nothing_too_much_or_nonsense_is_refused(engine_server, request_):
    serving = await engine_server()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.engine.Abort(request_)
    assert detail_of(caught.value).reason == pb.ERROR_REASON_INVALID_REQUEST


async def test_as_many_ids_as_the_contract_says_have_an_answer_that_every_client_takes(engine_server):
    serving = await engine_server()
    ids = [f"{number:0>128}" for number in range(16_384)]
    response = await serving.engine.Abort(pb.AbortRequest(request_ids=ids))
    assert [result.request_id for result in response.results] == ids
    assert response.ByteSize() < 4 << 20


async def test_requests_aborted_as_soon_as_they_arrive_leave_nothing(engine_server):
    serving = await engine_server(mocker_itl_ms=1.0, max_num_seqs=4)
    for i in range(50):
        call = asyncio.create_task(serving.generate(ask(f"r{i}", max_tokens=LONG)))
        await asyncio.sleep(0.001 * (i % 3))
        while not call.done():
            await abort(serving, all=True)
    load = await serving.until_idle()
    assert load.requests_finished == 50
