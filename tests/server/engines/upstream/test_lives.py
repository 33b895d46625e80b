"""How a server in front of a bare engine begins, and how it ends with that engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.grpc_server import bare_server
from enginewire.server.engines.upstream.connection import Connection
from enginewire.server.server import EngineServer
from tests.patience import PATIENCE_SECONDS
from tests.server.engines.upstream.conftest import Front
from tests.server.engines.upstream.raw import Ending, Odd, RawServer
from tests.server.serving import Serving, ask, run_until_ready, until_true

LONG = 4000
DEAD, START_FAILED = 70, 1
ServerOf = Callable[..., EngineServer]


async def held(
    server: EngineServer, number: int = 10
) -> tuple[asyncio.Task[int], list[asyncio.Task], Serving]:
    """The life of a server, requests that it runs and that wait in it, and a channel to it."""
    running = await run_until_ready(server)
    serving = Serving(server)
    answers = [asyncio.create_task(serving.generate(ask(f"r{i}", max_tokens=LONG))) for i in range(number)]
    await serving.until(lambda load: (load.running, load.waiting) == (8, number - 8))
    return running, answers, serving


async def died(held_by: tuple[asyncio.Task[int], list[asyncio.Task], Serving]) -> None:
    """Everybody hears that the engine is dead, and so does whoever started the process."""
    running, answers, serving = held_by
    async with asyncio.timeout(PATIENCE_SECONDS):
        for answer in answers:
            failure = (await answer).failure
            assert failure.reason == pb.ERROR_REASON_ENGINE_DEAD
            assert failure.retryable
        assert await running == DEAD
    assert serving.server.lifecycle.state == pb.ENGINE_STATE_DEAD
    await serving.channel.close()


async def test_an_engine_that_dies_takes_its_server_with_it(odd: Odd, raw: RawServer, server_of: ServerOf):
    holding = await held(server_of())
    await raw.end()
    await died(holding)


async def test_nothing_saves_a_server_whose_engine_is_gone(odd: Odd, raw: RawServer, server_of: ServerOf):
    holding = await held(server_of(watchdog_timeout=0.0))
    await raw.end()
    await died(holding)


async def test_another_life_of_the_engine_is_not_this_one(odd: Odd, raw: RawServer, server_of: ServerOf):
    holding = await held(server_of(), 8)
    odd.info.engine_lifetime_id = "two"
    await died(holding)


async def test_an_engine_that_comes_back_between_two_looks_is_noticed(
    odd: Odd, raw: RawServer, server_of: ServerOf
):
    server = server_of()
    running = await run_until_ready(server)
    await raw.end()
    await raw.start(Odd(life="two"))
    assert await asyncio.wait_for(running, PATIENCE_SECONDS) == DEAD
    assert server.lifecycle.state == pb.ENGINE_STATE_DEAD


async def test_a_lost_connection_to_the_same_life_costs_its_requests_only(
    odd: Odd, raw: RawServer, front: Front, monkeypatch: pytest.MonkeyPatch
):
    serving, is_back, info = await front(), asyncio.Event(), Connection.info

    async def info_of_who_is_back(connection: Connection, seconds: float | None = None):
        await is_back.wait()
        return await info(connection, seconds)

    answer = asyncio.create_task(serving.generate(ask(max_tokens=LONG)))
    await until_true(lambda: bool(odd.live))
    # Nobody looks while nobody listens: here a new server needs time for what a proxy does at once.
    monkeypatch.setattr(Connection, "info", info_of_who_is_back)
    await raw.end()
    await raw.start(odd)
    is_back.set()
    assert (await answer).failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await serving.generate(ask("again"))).failure:  # noqa: ASYNC110  # there is no event
            await asyncio.sleep(0.05)
    assert serving.server.lifecycle.state == pb.ENGINE_STATE_READY


async def test_an_engine_that_answers_a_look_with_a_bug_lives_on(odd: Odd, front: Front, caplog):
    serving = await front()
    odd.has_bug = True
    await until_true(lambda: "the engine answers with INTERNAL: a bug" in caplog.text)
    assert (await serving.generate(ask())).usage() == (5, 8)


async def test_an_engine_that_answers_nothing_more_is_stuck(odd: Odd, server_of: ServerOf):
    running, answers, serving = await held(server_of(watchdog_timeout=1.0), 8)
    odd.answers_info.clear()
    assert {(await answer).failure.reason for answer in answers} == {pb.ERROR_REASON_STUCK}
    assert await asyncio.wait_for(running, PATIENCE_SECONDS) == DEAD
    await serving.channel.close()
    odd.answers_info.set()


async def test_the_server_waits_until_the_engine_is_there(raw: RawServer, server_of: ServerOf, caplog):
    caplog.set_level(logging.INFO)
    server = server_of()
    running = asyncio.create_task(server.run())
    await until_true(lambda: "waiting for the engine" in caplog.text)
    serving = Serving(server)
    assert (await serving.generate(ask())).failure.reason == pb.ERROR_REASON_NOT_STARTED
    await raw.start(Odd())
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_READY)
    assert (await serving.generate(ask())).usage() == (5, 8)
    await serving.close()
    running.cancel()
    await asyncio.wait([running])


async def test_the_server_waits_for_an_engine_that_is_started_again(raw: RawServer, front: Front):
    await raw.start(Ending())
    assert (await (await front()).generate(ask())).usage() == (5, 8)


async def fails_to_start(server: EngineServer, caplog: pytest.LogCaptureFixture, *words: str) -> None:
    assert await asyncio.wait_for(server.run(), PATIENCE_SECONDS) == START_FAILED
    [said] = [each for each in caplog.messages if each.startswith("the engine failed to start")]
    for word in words:
        assert word in said


async def test_an_engine_that_does_not_come_is_told_in_a_sentence(
    server_of: ServerOf, raw: RawServer, caplog
):
    late = server_of(upstream_start_timeout=0.3)
    await fails_to_start(late, caplog, f"--upstream {raw.target}", "no engine has answered within 0.3 s")


async def test_a_server_of_something_else_is_no_bare_engine(server_of: ServerOf, raw: RawServer, caplog):
    other = bare_server()
    other.add_insecure_port(raw.target)
    await other.start()
    await fails_to_start(server_of(), caplog, "is no bare engine", "UNIMPLEMENTED")
    await other.stop(None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"role": pb.ENGINE_ROLE_PREFILL}, ("its role is ENGINE_ROLE_PREFILL",)),
        ({"data_parallel_size": 2}, ("2 data-parallel ranks",)),
        ({"vocab_size": 0}, ("EngineConfig.vocab_size",)),
        ({"model": ""}, ("EngineConfig.model",)),
    ],
    ids=str,
)
async def test_facts_that_cannot_be_served_are_told(
    change: dict[str, object], words: tuple[str, ...], odd: Odd, server_of: ServerOf, caplog
):
    for name, value in change.items():
        setattr(odd.info.config, name, value)
    await fails_to_start(server_of(), caplog, *words)


async def test_a_socket_that_others_may_replace_is_not_trusted(
    odd: Odd, server_of: ServerOf, socket_folder: Path, caplog
):
    open_folder = socket_folder / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    (open_folder / "raw.sock").symlink_to(socket_folder / "raw.sock")
    server = server_of(upstream=f"unix:{open_folder / 'raw.sock'}")
    await fails_to_start(server, caplog, "everybody may replace files in it")
    assert not odd.seen


async def test_a_clean_up_leaves_the_engine_alone(odd: Odd, raw: RawServer, front: Front):
    serving = await front()
    answer = asyncio.create_task(serving.generate(ask(max_tokens=LONG)))
    await until_true(lambda: bool(odd.live))
    await serving.engine.Cleanup(pb.CleanupRequest(abort_in_flight=True))
    assert (await answer).finishes() == {0: pb.FINISH_REASON_CANCELLED}
    await until_true(lambda: not odd.live)
    async with grpc.aio.insecure_channel(raw.target) as channel:
        info = await pb.DiscoveryServiceStub(channel).GetEngineInfo(pb.GetEngineInfoRequest())
    assert info == odd.info
