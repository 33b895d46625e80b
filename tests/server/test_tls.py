"""An engine server on TLS: who gets in, and what a change of its certificate means for streams that run."""

from __future__ import annotations

import asyncio
import re
import ssl
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.error import HTTPError, URLError

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from enginewire import v1 as pb
from enginewire.server.config.options import ServerOptions
from enginewire.server.load_engine import make_engine
from enginewire.server.server import EngineServer
from tests.certificates import Authority, Signed
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import ENGINE_SERVICE, ask, detail_of, rest_of, submit

StartServer = Callable[..., Awaitable[EngineServer]]
BACKEND = "backend.example.org"
NUM_STREAMS = 4


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def mutual(authority: Authority) -> dict[str, object]:
    """Options of a server whose callers need a certificate."""
    mine = authority.signed("server")
    return {
        "ssl_certfile": mine.certificate,
        "ssl_keyfile": mine.key,
        "ssl_ca_certs": authority.file,
        "port": 0,
    }


def channel_to(target: str, authority: Authority, caller: Signed | None = None) -> grpc.aio.Channel:
    shown = (caller.key.read_bytes(), caller.certificate.read_bytes()) if caller else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes(), *shown)
    return grpc.aio.secure_channel(target, credentials, options=[("grpc.use_local_subchannel_pool", 1)])


async def load_of(channel: grpc.aio.Channel) -> pb.Load:
    stub = pb.DiscoveryServiceStub(channel)
    return (await stub.GetLoad(pb.GetLoadRequest(), timeout=PATIENCE_SECONDS)).load


async def code_of(channel: grpc.aio.Channel) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await load_of(channel)
    return caught.value.code()


@pytest.fixture
async def tls_server() -> AsyncIterator[StartServer]:
    """`await tls_server(**options)` is a started server with a mocker."""
    servers: list[EngineServer] = []

    async def start(**options: object) -> EngineServer:
        given = ServerOptions(engine="mocker", **options)
        server = EngineServer(make_engine(given), given)
        servers.append(server)
        await server.listen()
        await server.start()
        return server

    yield start
    for server in servers:
        await server.stop()


async def test_only_callers_with_a_certificate_of_the_authority_get_in(
    tls_server, mutual, authority: Authority, tmp_path: Path
) -> None:
    server = await tls_server(**mutual)
    stranger = Authority(tmp_path, "stranger")
    async with channel_to(server.target, authority, authority.signed("caller")) as channel:
        assert (await load_of(channel)).state == pb.ENGINE_STATE_READY
    for caller in (None, stranger.signed("other"), authority.signed("old", is_expired=True)):
        async with channel_to(server.target, authority, caller) as channel:
            assert await code_of(channel) is grpc.StatusCode.UNAVAILABLE
    async with grpc.aio.insecure_channel(server.target) as channel:
        assert await code_of(channel) is grpc.StatusCode.UNAVAILABLE


async def test_a_caller_does_not_take_a_server_of_another_authority_for_ours(
    tls_server, authority: Authority, tmp_path: Path
) -> None:
    fake = Authority(tmp_path, "stranger").signed("fake")
    server = await tls_server(ssl_certfile=fake.certificate, ssl_keyfile=fake.key, port=0)
    async with channel_to(server.target, authority) as channel:
        assert await code_of(channel) is grpc.StatusCode.UNAVAILABLE


async def test_every_kind_of_rpc_is_kept_from_callers_of_another_name(
    tls_server, mutual, authority: Authority
) -> None:
    server = await tls_server(**mutual, ssl_allowed_client_names=(BACKEND,), reflection=True)
    async with channel_to(
        server.target, authority, authority.signed("other", "other.example.org")
    ) as channel:
        engine = pb.EngineServiceStub(channel)
        calls = [
            lambda: engine.Abort(pb.AbortRequest(request_ids=["r"])),
            lambda: engine.Generate(ask()).read(),
            lambda: engine.GenerateMultiplexed(iter([])).read(),
            lambda: health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()).read(),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call()
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert detail_of(caught.value).reason == pb.ERROR_REASON_AUTH
    async with channel_to(server.target, authority, authority.signed("backend", BACKEND)) as channel:
        engine = pb.EngineServiceStub(channel)
        outputs = [response.output async for response in engine.Generate(ask(max_tokens=3))]
        assert sum(len(output.token_ids) for output in outputs) == 3


async def test_metrics_are_behind_the_same_certificate(tls_server, mutual, authority: Authority) -> None:
    server = await tls_server(**mutual, ssl_allowed_client_names=(BACKEND,), metrics_port=0)
    url = server.metrics.url
    assert url.startswith("https://")
    page = await asyncio.to_thread(page_for, url, authority, authority.signed("scraper", BACKEND))
    assert b'enginewire:certificate_remaining_seconds{side="server"} ' in page
    with pytest.raises(HTTPError, match="403"):
        await asyncio.to_thread(page_for, url, authority, authority.signed("caller", "other.example.org"))
    with pytest.raises((URLError, ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(page_for, url, authority, None)


def page_for(url: str, authority: Authority, caller: Signed | None) -> bytes:
    context = ssl.create_default_context(cafile=authority.file)
    if caller is not None:
        context.load_cert_chain(caller.certificate, caller.key)
    with urllib.request.urlopen(url, context=context, timeout=PATIENCE_SECONDS) as answer:
        return answer.read()


async def test_certificates_change_again_and_again_and_no_stream_is_lost(
    tls_server, mutual, authority: Authority, tmp_path: Path
) -> None:
    server = await tls_server(**mutual, mocker_itl_ms=20)
    mine = Signed(mutual["ssl_certfile"], mutual["ssl_keyfile"])
    caller = authority.signed("caller")
    async with channel_to(server.target, authority, caller) as channel:
        engine = pb.EngineServiceStub(channel)
        running = [engine.Generate(ask(f"r{i}", max_tokens=4000)) for i in range(NUM_STREAMS)]
        for call in running:
            await call.read()
        for number in range(10):
            renewed = authority.signed(f"renewed{number}", "localhost", "127.0.0.1")
            mine.replace_by(renewed)
            assert await shown_by(server.target) == ssl.PEM_cert_to_DER_cert(renewed.certificate.read_text())
            async with channel_to(server.target, authority, caller) as other:
                assert (await load_of(other)).running == NUM_STREAMS
        # Whom the server trusts changes as well: new callers need a certificate of the next authority.
        following = Authority(tmp_path, "next")
        authority.file.write_bytes(following.file.read_bytes())
        mine.replace_by(following.signed("following"))
        async with channel_to(server.target, following, caller) as other:
            assert await code_of(other) is grpc.StatusCode.UNAVAILABLE
        async with channel_to(server.target, following, following.signed("new")) as other:
            assert (await load_of(other)).running == NUM_STREAMS
        for call in running:
            assert (await call.read()).output.token_ids
            call.cancel()


async def shown_by(target: str) -> bytes:
    """The certificate that the server shows in a handshake, in DER; it asks for one later than that."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = target.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return shown


async def test_a_unix_socket_speaks_no_tls_and_asks_for_no_names(engine_server, mutual) -> None:
    del mutual["port"]
    serving = await engine_server(**mutual, ssl_allowed_client_names=(BACKEND,))
    assert (await serving.load()).state == pb.ENGINE_STATE_READY


async def test_health_has_a_port_without_tls_that_serves_nothing_else(
    tls_server, mutual, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = await tls_server(**mutual, health_port=0)
    [target] = re.findall(r"health at (127\.0\.0\.1:\d+)", caplog.text)
    async with grpc.aio.insecure_channel(target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=ENGINE_SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert await code_of(channel) is grpc.StatusCode.UNIMPLEMENTED
        watched = health.Watch(health_pb2.HealthCheckRequest(service=ENGINE_SERVICE))
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.SERVING
        await server.stop()
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_request_is_ended_by_who_has_the_certificate_that_began_it(
    tls_server, mutual, authority: Authority
) -> None:
    server = await tls_server(**mutual, mocker_itl_ms=5)
    owner, other = (authority.signed(name, f"{name}.example.org") for name in ("owner", "other"))
    async with (
        channel_to(server.target, authority, owner) as mine,
        channel_to(server.target, authority, other) as theirs,
    ):
        engine = pb.EngineServiceStub(mine)
        for name, call in {
            "r1": engine.Generate(ask("r1", max_tokens=4000)),
            "m1": engine.GenerateMultiplexed(iter([submit(1, ask("m1", max_tokens=4000))])),
        }.items():
            ends = pb.AbortRequest(request_ids=[name])
            await call.read()
            [result] = (await pb.EngineServiceStub(theirs).Abort(ends)).results
            assert result.outcome == pb.ABORT_OUTCOME_UNKNOWN
            [result] = (await engine.Abort(ends)).results
            assert result.outcome == pb.ABORT_OUTCOME_ABORTED
            assert [message async for message in rest_of(call)]
        # Who may clean up ends what others have begun.
        call = engine.Generate(ask("r2", max_tokens=4000))
        await call.read()
        await pb.EngineServiceStub(theirs).Cleanup(pb.CleanupRequest(abort_in_flight=True))
        assert [message.output.finish_reason async for message in rest_of(call)][-1]


async def is_denied(call: Awaitable[object]) -> bool:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        is_forbidden = error.code() is grpc.StatusCode.PERMISSION_DENIED
        return is_forbidden and detail_of(error).reason == pb.ERROR_REASON_AUTH
    return False


async def test_a_certificate_may_do_what_its_line_says(
    tls_server, mutual, authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "callers"
    lines = ("reader.example.org role=read", "user.example.org", "operator.example.org role=admin")
    file.write_text("".join(f"certificate {line}\n" for line in lines))
    server = await tls_server(**mutual, api_key_file=file, mocker_itl_ms=5)

    async def may(name: str) -> list[bool]:
        """Read the load, begin a request, and load an adapter, which the mocker says has no source here."""
        caller = authority.signed(name, f"{name}.example.org")
        async with channel_to(server.target, authority, caller) as channel:
            calls = [
                load_of(channel),
                pb.EngineServiceStub(channel).Generate(ask(name, max_tokens=1)).read(),
                pb.AdminServiceStub(channel).LoadAdapter(pb.LoadAdapterRequest(name="a", source="b")),
            ]
            return [not await is_denied(call) for call in calls]

    assert await may("reader") == [True, False, False]
    assert await may("user") == [True, True, False]
    assert await may("operator") == [True, True, True]
    assert await may("stranger") == [True, True, True]
    user, operator = (authority.signed(name, f"{name}.example.org") for name in ("user", "operator"))
    async with (
        channel_to(server.target, authority, user) as theirs,
        channel_to(server.target, authority, operator) as channel,
    ):
        call = pb.EngineServiceStub(theirs).Generate(ask("r1", max_tokens=4000))
        await call.read()
        [result] = (await pb.EngineServiceStub(channel).Abort(pb.AbortRequest(request_ids=["r1"]))).results
        assert result.outcome == pb.ABORT_OUTCOME_ABORTED
        assert [message async for message in rest_of(call)]
