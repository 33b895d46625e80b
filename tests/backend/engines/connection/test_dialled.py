"""A client on TLS: whom it believes, and what it shows after its files have changed."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.connection.dialled import Dialled
from enginewire.backend.engines.failure import RequestFailed
from enginewire.calling.channel import open_channel
from enginewire.calling.trust import Trust
from enginewire.server.config.options import ServerOptions
from enginewire.server.load_engine import make_engine
from enginewire.server.server import EngineServer
from enginewire.tls.target import TargetTls
from tests.certificates import Authority
from tests.patience import PATIENCE_SECONDS


@asynccontextmanager
async def engine_on_tls(authority: Authority, callers: Authority, port: int = 0) -> AsyncIterator[str]:
    mine = authority.signed("engine")
    options = ServerOptions(
        engine="mocker",
        port=port,
        ssl_certfile=mine.certificate,
        ssl_keyfile=mine.key,
        ssl_ca_certs=callers.file,
    )
    server = EngineServer(make_engine(options), options)
    await server.listen()
    await server.start()
    try:
        yield server.target
    finally:
        await server.stop()


async def test_a_lost_connection_is_made_anew_with_the_files_of_now(tmp_path: Path) -> None:
    authority, following = Authority(tmp_path), Authority(tmp_path, "following")
    mine = authority.signed("mine")
    tls = TargetTls(authorities=authority.file, certificate=mine.certificate, key=mine.key)
    async with engine_on_tls(authority, callers=authority) as target:
        client = EngineClient(target, trust=Trust(tls=tls))
        before = await client.wait_ready(PATIENCE_SECONDS)
        mine.replace_by(following.signed("new"))
        # What is there goes on as it was: this server would not believe the new certificate.
        assert (await client.load(PATIENCE_SECONDS)).state == pb.ENGINE_STATE_READY
    port = int(target.rpartition(":")[2])
    async with client, engine_on_tls(authority, callers=following, port=port):
        after = await client.wait_ready(PATIENCE_SECONDS)
        assert after.engine_lifetime_id != before.engine_lifetime_id


async def test_an_engine_of_another_authority_or_name_is_sent_nothing(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    mine = authority.signed("mine")
    shown = {"certificate": mine.certificate, "key": mine.key}
    async with engine_on_tls(authority, callers=authority) as target:
        for tls in (
            TargetTls(authorities=stranger.file, **shown),
            TargetTls(authorities=authority.file, name="other.example.org", **shown),
            TargetTls(authorities=authority.file),
            None,
        ):
            async with EngineClient(target, trust=Trust(tls=tls)) as client:
                with pytest.raises(RequestFailed):
                    await client.load(PATIENCE_SECONDS)


class Thoughtful(pb.DiscoveryServiceServicer):
    """Says that it starts when it may, and cannot be watched."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.info = pb.GetEngineInfoResponse(maximum_client_revision=pb.CONTRACT_REVISION)

    async def GetEngineInfo(self, request: pb.GetEngineInfoRequest, context: Any) -> pb.GetEngineInfoResponse:  # noqa: N802
        return self.info

    async def GetLoad(self, request: pb.GetLoadRequest, context: Any) -> pb.GetLoadResponse:  # noqa: N802
        self.asked.set()
        await self.may_answer.wait()
        return pb.GetLoadResponse(load=pb.Load(state=pb.ENGINE_STATE_STARTING))


@asynccontextmanager
async def served(engine: Thoughtful, folder: Path) -> AsyncIterator[str]:
    server = grpc.aio.server()
    pb.add_DiscoveryServiceServicer_to_server(engine, server)
    target = f"unix:{folder}/e"
    server.add_insecure_port(target)
    await server.start()
    yield target
    await server.stop(None)


@dataclass
class Asked:
    """An engine that thinks about a question, which came over a channel that was left since."""

    engine: Thoughtful
    dialled: Dialled
    answer: asyncio.Task[pb.Load]


@pytest.fixture
async def asked(socket_folder: Path) -> AsyncIterator[Asked]:
    """Of two who ask a new life of an engine who it is, the first to know leaves the old life's channel."""
    engine = Thoughtful()
    async with served(engine, socket_folder) as target:
        dialled = Dialled(target, Trust())
        dialled.ping_as_borne(10_000)
        answer = asyncio.create_task(dialled.rpc.load(PATIENCE_SECONDS))
        await engine.asked.wait()
        dialled.ping_as_borne(20_000)
        yield Asked(engine, dialled, answer)
        await dialled.close()


async def test_a_question_over_a_channel_that_was_left_is_answered(asked: Asked) -> None:
    # Whatever closes a channel at once has done so.
    await asyncio.sleep(0.05)
    asked.engine.may_answer.set()
    assert (await asked.answer).state == pb.ENGINE_STATE_STARTING
    assert (await asked.dialled.rpc.load(PATIENCE_SECONDS)).state == pb.ENGINE_STATE_STARTING


async def test_a_question_over_a_channel_that_was_left_ends_with_the_client(asked: Asked) -> None:
    await asked.dialled.close()
    await asyncio.wait([asked.answer])
    assert asked.answer.cancelled()


async def test_a_channel_that_nobody_uses_any_more_is_gone(socket_folder: Path) -> None:
    """An engine that is upgraded again and again leaves no connections behind."""
    opened = list[weakref.ref[grpc.aio.Channel]]()

    def remembered(target: str, interval_ms: int | None, trust: Trust) -> grpc.aio.Channel:
        channel = open_channel(target, interval_ms, trust)
        opened.append(weakref.ref(channel))
        return channel

    dialled = Dialled(f"unix:{socket_folder}/nobody", Trust(), remembered)
    for interval_ms in (10_000, 20_000, 30_000):
        dialled.ping_as_borne(interval_ms)
    gc.collect()
    # The first one stays: it is for lives that say nothing of pings.
    assert [channel() is not None for channel in opened] == [True, False, False, True]
    await dialled.close()


async def test_a_question_to_nobody_ends_as_one_when_files_change(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.signed("mine")
    tls = TargetTls(authorities=authority.file, certificate=mine.certificate, key=mine.key)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dialled = Dialled(f"127.0.0.1:{silent.getsockname()[1]}", Trust(tls=tls))
        before = dialled.rpc
        asking = asyncio.create_task(dialled.rpc.load(0.3))
        await asyncio.sleep(0)
        mine.replace_by(authority.signed("new"))
        dialled.renew()
        assert dialled.rpc is not before
        with pytest.raises(RequestFailed) as told:
            await asking
    assert told.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await dialled.close()


async def test_an_engine_that_cannot_be_watched_is_asked_on_over_a_channel_that_was_left(
    socket_folder: Path,
) -> None:
    engine = Thoughtful()
    engine.may_answer.set()
    async with served(engine, socket_folder) as target, EngineClient(target) as client:
        engine.info.config.limits.min_keepalive_interval_ms = 10_000
        await client.info(PATIENCE_SECONDS)
        loads = client.watch_load(10)
        assert (await anext(loads)).state == pb.ENGINE_STATE_STARTING
        # Its next life bears other pings, and a request is the first to know.
        engine.info.config.limits.min_keepalive_interval_ms = 20_000
        client.forget()
        await client.info(PATIENCE_SECONDS)
        assert (await anext(loads)).state == pb.ENGINE_STATE_STARTING
        await loads.aclose()
