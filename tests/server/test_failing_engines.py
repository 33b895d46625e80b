"""Engines whose own start, drain, clean-up or abort fails or never ends: the server still ends in order."""

from __future__ import annotations

import asyncio
import signal

import pytest

from enginewire import v1 as pb
from enginewire.server import lifecycle, server as server_module
from enginewire.server.admission import table as admission
from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.server import EngineServer
from tests.server.serving import Serving, ask, run_until_ready, seconds, send_signal, until_true

SLOW = MockerOptions(itl_ms=10.0)


class Own(BaseException):
    """What no `except Exception` catches, like SystemExit and the panic of a library in Rust."""


FAILURES = [RuntimeError("no"), SystemExit(3), asyncio.CancelledError(), Own("no")]


class Faulty(MockerEngine):
    """Fails in one call, in one way; None: that call never ends."""

    def __init__(self, call: str, failure: BaseException | None) -> None:
        super().__init__(SLOW)
        self.call, self.failure = call, failure
        self.calls: list[str] = []

    async def _enter(self, call: str) -> None:
        self.calls.append(call)
        if call != self.call:
            return
        if self.failure is None:
            await asyncio.Event().wait()
        assert self.failure is not None
        raise self.failure

    async def start(self, worker_id: int) -> pb.EngineConfig:
        config = await super().start(worker_id)
        await self._enter("start")
        return config

    async def setup_metrics(self, context: object) -> object:
        await self._enter("setup_metrics")
        return await super().setup_metrics(context)

    async def abort(self, context: object) -> None:
        await self._enter("abort")
        await super().abort(context)

    async def drain(self) -> None:
        await self._enter("drain")
        await super().drain()

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._enter("cleanup")


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(lifecycle, "CLEANUP_SECONDS", 0.2)
    monkeypatch.setattr(lifecycle, "CANCEL_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(admission, "ABORT_SECONDS", 0.1)


def make_server(socket_folder, engine, **given) -> EngineServer:
    return EngineServer(engine, ServerOptions(engine="mocker", uds=socket_folder / "s.sock", **given))


async def sigterm_while_generating(server: EngineServer, max_tokens: int) -> tuple[object, int]:
    """The answer of a request that runs while SIGTERM comes, and the exit code."""
    running = await run_until_ready(server)
    serving = Serving(server)
    answer = asyncio.create_task(serving.generate(ask(max_tokens=max_tokens)))
    await until_true(lambda: server.lifecycle.load().running == 1)
    send_signal(running, signal.SIGTERM)
    answered, exit_code = await asyncio.gather(answer, running)
    await serving.channel.close()
    return answered, exit_code


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_a_drain_that_raises_is_logged_and_running_requests_finish(socket_folder, failure, caplog):
    engine = Faulty("drain", failure)
    server = make_server(socket_folder, engine)
    answer, exit_code = await sigterm_while_generating(server, max_tokens=40)
    assert answer.usage() == (5, 40)
    assert answer.finishes() == {0: pb.FINISH_REASON_LENGTH}
    assert "the engine's drain failed" in caplog.text
    assert (exit_code, engine.calls[-1]) == (0, "cleanup")
    assert not (socket_folder / "s.sock").exists()


async def test_a_drain_that_raises_ends_the_rpc_with_a_final_state(engine_server):
    serving = await engine_server(Faulty("drain", RuntimeError("no")))
    progress = [item async for item in serving.engine.Drain(pb.DrainRequest())]
    assert progress[-1].state == pb.DRAIN_STATE_DRAINED


async def test_a_drain_that_never_ends_is_over_at_the_deadline(engine_server, caplog):
    serving = await engine_server(Faulty("drain", None))
    running = asyncio.create_task(serving.generate(ask(max_tokens=100_000)))
    await serving.until(lambda load: load.running == 1)
    progress = [item async for item in serving.engine.Drain(pb.DrainRequest(deadline=seconds(0.2)))]
    assert progress[-1].state == pb.DRAIN_STATE_TIMED_OUT
    assert (await running).finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert "the engine's drain did not end before the deadline" in caplog.text


@pytest.mark.parametrize("failure", [*FAILURES, None], ids=repr)
async def test_a_clean_up_that_fails_is_told_by_log_and_exit_code_and_leaves_no_socket(
    socket_folder, failure, impatient, caplog
):
    server = make_server(socket_folder, Faulty("cleanup", failure))
    running = await run_until_ready(server)
    send_signal(running, signal.SIGTERM)
    assert await running == 70
    assert server.lifecycle.state == pb.ENGINE_STATE_STOPPED
    assert "the engine's cleanup" in caplog.text
    assert not (socket_folder / "s.sock").exists()


@pytest.mark.parametrize("failure", [RuntimeError("no"), None], ids=repr)
async def test_a_clean_up_that_fails_ends_the_rpc_and_happens_once(engine_server, failure, impatient):
    engine = Faulty("cleanup", failure)
    serving = await engine_server(engine)
    assert not (await serving.engine.Cleanup(pb.CleanupRequest())).already_clean
    assert (await serving.load()).state == pb.ENGINE_STATE_STOPPED
    assert (await serving.engine.Cleanup(pb.CleanupRequest())).already_clean
    assert engine.calls.count("cleanup") == 1


async def test_who_stops_waiting_for_a_clean_up_does_not_stop_it(engine_server):
    engine = MockerEngine(SLOW)
    cleaning, may_end = asyncio.Event(), asyncio.Event()

    async def cleanup() -> None:
        cleaning.set()
        await may_end.wait()

    engine.cleanup = cleanup
    serving = await engine_server(engine)
    waiting = asyncio.create_task(serving.server.lifecycle.cleanup(abort_in_flight=False))
    await cleaning.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    may_end.set()
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_STOPPED)


async def test_who_aborts_in_a_clean_up_need_not_wait_for_another_who_does_not(engine_server):
    serving = await engine_server(MockerEngine(SLOW))
    running = asyncio.create_task(serving.generate(ask(max_tokens=100_000)))
    await serving.until(lambda load: load.running == 1)
    patient = asyncio.ensure_future(serving.engine.Cleanup(pb.CleanupRequest()))
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_DRAINING)
    answers = [await serving.engine.Cleanup(pb.CleanupRequest(abort_in_flight=True)), await patient]
    assert sorted(answer.already_clean for answer in answers) == [False, True]
    assert (await running).finishes() == {0: pb.FINISH_REASON_CANCELLED}


@pytest.mark.parametrize("call", ["start", "setup_metrics"])
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_a_start_that_raises_half_way_ends_with_1_and_is_cleaned_up(
    socket_folder, call, failure, caplog
):
    engine = Faulty(call, failure)
    assert await make_server(socket_folder, engine).run() == 1
    assert "the engine failed to start" in caplog.text
    assert engine.calls[-1] == "cleanup"
    assert not (socket_folder / "s.sock").exists()


async def test_a_start_that_takes_no_notice_of_a_signal_is_left_behind(socket_folder, monkeypatch, caplog):
    monkeypatch.setattr(server_module, "START_GRACE_SECONDS", 0.1)
    engine = Faulty("none", None)
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def start(worker_id: int) -> pb.EngineConfig:
        has_begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        return pb.EngineConfig()

    engine.start = start
    running = asyncio.create_task(make_server(socket_folder, engine).run())
    await has_begun.wait()
    send_signal(running, signal.SIGTERM)
    assert await running == 70
    assert "cleanup" not in engine.calls, "a clean-up may not run beside a start"
    assert "the engine's start did not end" in caplog.text
    may_end.set()


@pytest.mark.parametrize("failure", [*FAILURES, None], ids=repr)
async def test_an_abort_that_fails_holds_up_neither_a_drain_nor_other_requests(
    socket_folder, failure, impatient, caplog
):
    server = make_server(socket_folder, Faulty("abort", failure), shutdown_timeout=0.1)
    answer, exit_code = await sigterm_while_generating(server, max_tokens=100_000)
    assert exit_code == 0
    assert answer.failure.reason == pb.ERROR_REASON_DRAINING
    assert server.lifecycle.state == pb.ENGINE_STATE_STOPPED


async def test_an_engine_that_dies_in_a_drain_ends_with_70(socket_folder):
    engine = MockerEngine(SLOW)
    engine.stalled_for = lambda: 100.0 if server.lifecycle.drain_state else 0.0
    server = make_server(socket_folder, engine, watchdog_timeout=0.1)
    answer, exit_code = await sigterm_while_generating(server, max_tokens=100_000)
    assert answer.failure.reason == pb.ERROR_REASON_STUCK
    assert exit_code == 70


async def test_a_load_that_fails_holds_up_no_drain(engine_server, caplog):
    engine = MockerEngine(SLOW)
    serving = await engine_server(engine)
    load = engine.load
    engine.load = lambda: 1 / 0
    progress = [item async for item in serving.engine.Drain(pb.DrainRequest())]
    assert progress[-1].state == pb.DRAIN_STATE_DRAINED
    assert caplog.text.count("the engine's load failed") == 1
    engine.load = load
