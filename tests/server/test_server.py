"""The whole server in one process: overload, slow readers, stuck and failing engines, what `run` returns."""

from __future__ import annotations

import asyncio
import signal
import socket
import time

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.listening.sockets import UnixSocket
from enginewire.server import server as server_module
from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.interface import StepListener, StepOutputs
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.load_engine import make_engine
from enginewire.server.server import EngineServer
from enginewire.server.status import PUSHBACK_KEY
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import (
    Serving,
    ask,
    detail_of,
    rest_of,
    run_until_ready,
    send_signal,
    submit,
    until_true,
)

LONG = 100_000
SLOW = {"mocker_itl_ms": 20.0}


async def test_of_100_requests_at_once_40_are_accepted_and_60_told_when_to_come_back(engine_server):
    serving = await engine_server(max_num_seqs=8, max_num_queued_reqs=32, mocker_ttft_ms=60_000.0)
    calls = [serving.engine.Generate(ask(f"r{i}")) for i in range(100)]
    ends = [asyncio.create_task(failure_of(call)) for call in calls]
    await until_true(lambda: sum(end.done() for end in ends) == 60)
    load = await serving.load()
    assert (load.running, load.waiting) == (8, 32)
    for error in [end.result() for end in ends if end.done()]:
        detail = detail_of(error)
        assert detail.reason == pb.ERROR_REASON_QUEUE_FULL
        assert detail.retryable
        assert dict(detail.metadata) == {"queue_depth": "32", "limit": "32"}
        assert 100 <= detail.retry_after.ToMilliseconds() <= 30_000
        assert int(dict(error.trailing_metadata())[PUSHBACK_KEY]) == detail.retry_after.ToMilliseconds()
    await serving.engine.Abort(pb.AbortRequest(all=True))
    assert (await asyncio.gather(*ends)).count(None) == 40


async def test_a_thousand_requests_wait_and_are_served_in_their_order(engine_server):
    serving = await engine_server(max_num_seqs=8, max_num_queued_reqs=1000, mocker_itl_ms=1.0)
    holding = [serving.engine.Generate(ask(f"holding-{i}", max_tokens=LONG)) for i in range(8)]
    for call in holding:
        await call.read()
    stream = serving.engine.GenerateMultiplexed()
    for handle in range(1, 1001):
        await stream.write(submit(handle, ask(f"r{handle}", max_tokens=1)))
    await stream.done_writing()
    await serving.until(lambda load: load.waiting == 1000)
    for call in holding:
        call.cancel()
    ended = [event.handle async for frame in stream for event in frame.events if event.output.finish_reason]
    assert ended == list(range(1, 1001))


async def failure_of(call) -> grpc.aio.AioRpcError | None:
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    return None


async def test_abort_load_and_health_answer_while_the_queue_is_full(engine_server):
    serving = await engine_server(max_num_seqs=1, max_num_queued_reqs=1, **SLOW)
    calls = [serving.engine.Generate(ask(f"r{i}", max_tokens=LONG)) for i in range(2)]
    for call in calls:
        await call.initial_metadata()
    assert (await serving.generate(ask("one-more"))).failure.reason == pb.ERROR_REASON_QUEUE_FULL
    begin = time.monotonic()
    assert await serving.is_serving()
    await serving.load()
    await serving.engine.Abort(pb.AbortRequest(all=True))
    assert time.monotonic() - begin < PATIENCE_SECONDS
    for call in calls:
        assert await read_finish(call) == pb.FINISH_REASON_CANCELLED


async def read_finish(call) -> int:
    return [response.output.finish_reason async for response in call][-1]


class Fountain(MockerEngine):
    """Sends outputs so large that a reader who takes nothing is noticed after a few dozen."""

    def __init__(self) -> None:
        super().__init__(MockerOptions(itl_ms=1.0))

    def set_step_listener(self, listener: StepListener) -> None:
        def flood(outputs: StepOutputs) -> None:
            for _, output in outputs.outputs:
                output.engine_data = bytes(1 << 16)
            listener(outputs)

        super().set_step_listener(flood)


@pytest.fixture
def impatient(monkeypatch):
    """Options of a server that checks its readers often and gives up on them soon."""
    monkeypatch.setattr(server_module, "SLOW_CHECK_SECONDS", 0.05)
    return {"slow_consumer_timeout": 0.2}


def flood_request(request_id: str) -> pb.GenerateRequest:
    """Outputs with log-probabilities travel one by one, and the fountain swells them."""
    return ask(request_id, max_tokens=4000, output_options=pb.OutputOptions(logprobs=0))


async def test_a_reader_that_stalls_is_told_so_and_its_neighbours_are_not_slowed(engine_server, impatient):
    serving = await engine_server(Fountain(), **impatient)
    slow = serving.engine.Generate(flood_request("slow"))
    await slow.initial_metadata()
    neighbours = await asyncio.gather(*(serving.generate(ask(f"r{i}", max_tokens=300)) for i in range(4)))
    assert [answer.usage() for answer in neighbours] == [(5, 300)] * 4
    await serving.until_idle()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in rest_of(slow):
            pass
    assert detail_of(caught.value).reason == pb.ERROR_REASON_SLOW_CONSUMER


async def test_a_stalled_multiplexed_reader_loses_its_requests_with_a_status_each(engine_server, impatient):
    serving = await engine_server(Fountain(), **impatient)
    slow = serving.engine.GenerateMultiplexed()
    for handle in range(3):
        await slow.write(submit(handle, flood_request(f"slow{handle}")))
    await serving.until(lambda load: load.running == 3)
    await serving.until_idle()
    await slow.done_writing()
    events = [event async for frame in rest_of(slow) for event in frame.events]
    last = {event.handle: event for event in events}
    assert {event.status.code for event in last.values()} == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
    assert len(last) == 3


async def test_a_call_whose_reader_stalled_can_be_cancelled_and_aborted(engine_server):
    serving = await engine_server(Fountain())
    calls = [serving.engine.Generate(flood_request(f"slow{i}")) for i in range(2)]
    for call in calls:
        await call.initial_metadata()
    await serving.until(lambda load: load.tokens_generated > 400)
    calls[0].cancel()
    await serving.until(lambda load: load.running == 1)
    await serving.engine.Abort(pb.AbortRequest(request_ids=["slow1"]))
    await serving.until_idle()
    calls[1].cancel()


async def test_a_stuck_engine_ends_its_streams_and_takes_the_server_out_of_service(engine_server, capfd):
    serving = await engine_server(mocker_fault="stall:3", watchdog_timeout=1.0, **SLOW)
    single = asyncio.create_task(serving.generate(ask("a")))
    shared = asyncio.create_task(serving.multiplexed([submit(1, ask("b"))]))
    for answer in (await single, (await shared)[1]):
        assert answer.failure.reason == pb.ERROR_REASON_STUCK
        assert answer.failure.retryable
        assert answer.tokens()
    assert not await serving.is_serving("")
    assert (await serving.load()).state == pb.ENGINE_STATE_DEAD
    assert (await serving.generate(ask())).failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    assert "Thread" in capfd.readouterr().err
    # The engine cannot give back what it holds any more; the process ends instead.
    await serving.server.lifecycle.engine.cleanup()


async def test_a_long_prefill_is_not_a_stuck_engine(engine_server):
    serving = await engine_server(mocker_ttft_ms=2_500.0, watchdog_timeout=1.0)
    assert (await serving.generate(ask(max_tokens=2))).usage() == (5, 2)


@pytest.mark.parametrize("fault", ["step:3", "forward:poison"])
async def test_a_failing_step_fails_its_requests_and_the_server_goes_on(engine_server, fault):
    serving = await engine_server(mocker_fault=fault, **SLOW)
    poison = await serving.generate(ask("poison"))
    assert poison.failure.reason == pb.ERROR_REASON_INTERNAL
    assert (await serving.generate(ask("next"))).usage() == (5, 8)


class FailsToStart(MockerEngine):
    async def start(self, worker_id: int) -> pb.EngineConfig:
        raise ValueError("no such model: /models/nope")


class StartsNever(MockerEngine):
    has_begun = False

    async def start(self, worker_id: int) -> pb.EngineConfig:
        self.has_begun = True
        await asyncio.Event().wait()
        raise AssertionError


def make_server(socket_folder, engine=None, **given) -> EngineServer:
    options = ServerOptions(engine="mocker", **{"uds": socket_folder / "s.sock", **given})
    return EngineServer(engine or make_engine(options), options)


async def test_run_ends_with_0_after_a_signal_and_leaves_no_socket(socket_folder):
    server = make_server(socket_folder)
    running = await run_until_ready(server)
    send_signal(running, signal.SIGTERM)
    assert await running == 0
    assert not (socket_folder / "s.sock").exists()
    assert server.lifecycle.state == pb.ENGINE_STATE_STOPPED
    # The path is free again for another server, even within this process.
    UnixSocket(socket_folder / "s.sock").close()


async def test_run_ends_with_1_and_one_line_when_the_engine_cannot_start(socket_folder, caplog):
    assert await make_server(socket_folder, FailsToStart()).run() == 1
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "no such model" in record.getMessage()
    assert record.exc_info is None


async def test_a_signal_that_comes_with_the_end_of_the_start_is_not_lost(socket_folder, monkeypatch):
    server = make_server(socket_folder)
    stop: asyncio.Queue[signal.Signals] = asyncio.Queue()

    async def start() -> pb.EngineConfig:
        stop.put_nowait(signal.SIGTERM)
        return pb.EngineConfig()

    monkeypatch.setattr(server, "start", start)
    assert await server._start_unless_stopped(stop)
    assert stop.get_nowait() is signal.SIGTERM


async def test_run_ends_with_0_when_a_signal_comes_during_the_start(socket_folder):
    engine = StartsNever()
    running = asyncio.create_task(make_server(socket_folder, engine).run())
    await until_true(lambda: engine.has_begun)
    send_signal(running, signal.SIGINT)
    assert await asyncio.wait_for(running, PATIENCE_SECONDS) == 0


async def test_run_ends_with_70_when_the_engine_is_stuck(socket_folder):
    server = make_server(socket_folder, mocker_fault="stall:3", watchdog_timeout=0.1, **SLOW)
    running = await run_until_ready(server)
    serving = Serving(server)
    answer = await serving.generate(ask())
    assert answer.failure.reason == pb.ERROR_REASON_STUCK
    await serving.channel.close()
    assert await running == 70


async def test_run_ends_with_98_when_the_port_is_taken(socket_folder, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert await make_server(socket_folder, port=port).run() == 98
    assert f"127.0.0.1:{port}: address already in use" in caplog.text


async def test_a_free_port_is_chosen_and_told(socket_folder):
    server = make_server(socket_folder, port=0)
    await server.listen()
    await server.start()
    host, port = server.target.split(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)
    serving = Serving(server)
    assert (await serving.generate(ask())).usage() == (5, 8)
    await serving.close()


async def test_stopping_twice_and_before_the_start_is_fine(socket_folder):
    server = make_server(socket_folder)
    await server.stop()
    server = make_server(socket_folder)
    await server.listen()
    await server.stop()
    await server.stop()
