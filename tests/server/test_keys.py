"""An engine server with API keys: who may call what, and who may end whose requests."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from enginewire import v1 as pb
from enginewire.access.roles import Role, role_of
from enginewire.server.server import SERVICES
from enginewire.server.services.health import SERVICE as HEALTH_SERVICE
from tests.keys import ALL_KEYS, KEYS, UNKNOWN_KEY, bearing, line_of
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import ENGINE_SERVICE, Serving, ask, collect, detail_of, rest_of, submit

REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
METHODS = [
    f"/{service.full_name}/{method.name}"
    for service in (*SERVICES, HEALTH_SERVICE, REFLECTION)
    for method in service.methods
]
AUTH_CODES = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
NO_MESSAGE = b"\xff"
READ, INFER, ADMIN = (bearing(KEYS[role]) for role in Role)


async def code_of(serving: Serving, method: str, metadata: Sequence[tuple[str, str]]) -> grpc.StatusCode:
    """How a call ends that sends what no RPC can parse: whoever gets past the guard does nothing."""
    # Also for streams: what comes after a refusal would be an error of the client's own.
    call = serving.channel.unary_unary(method)(NO_MESSAGE, metadata=metadata, timeout=PATIENCE_SECONDS)
    code = await call.code()
    if code in AUTH_CODES:
        assert "enginewire-lifetime-id" not in dict(await call.initial_metadata())
    return code


@pytest.fixture
async def keyed(engine_server) -> Serving:
    """A server that asks for keys. It is the channel that brings none."""
    return await engine_server(api_key=ALL_KEYS, reflection=True, mocker_itl_ms=5)


@pytest.fixture(autouse=True)
def idle_as_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fixture asks of every server at the end, it asks with a key."""

    async def load(serving: Serving) -> pb.Load:
        return (await serving.discovery.GetLoad(pb.GetLoadRequest(), metadata=READ)).load

    monkeypatch.setattr(Serving, "load", load)


async def test_a_method_is_called_with_its_role_and_with_none_below(keyed: Serving) -> None:
    for method in METHODS:
        for metadata in ((), bearing(UNKNOWN_KEY)):
            assert await code_of(keyed, method, metadata) is grpc.StatusCode.UNAUTHENTICATED, method
        for role in Role:
            code = await code_of(keyed, method, bearing(KEYS[role]))
            assert (code is grpc.StatusCode.PERMISSION_DENIED) is (role < role_of(method)), (method, role)
            assert code is not grpc.StatusCode.UNAUTHENTICATED, (method, role)


async def test_a_key_is_brought_once_whole_and_as_bearer(keyed: Serving) -> None:
    key = KEYS[Role.READ]
    for values in (
        [key],
        [f"Basic {key}"],
        [f"Bearer {key[:-1]}"],
        [f"Bearer {key}x"],
        [f"Bearer  {key}"],
        ["Bearer"],
        [""],
        [f"Bearer {key}", f"Bearer {KEYS[Role.ADMIN]}"],
        [f"Bearer {'x' * 8000}"],
    ):
        metadata = tuple(("authorization", value) for value in values)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await keyed.discovery.GetLoad(pb.GetLoadRequest(), metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert caught.value.details() == "incorrect API key"
        assert detail_of(caught.value).reason == pb.ERROR_REASON_AUTH
    for scheme in ("Bearer", "bearer", "BEARER"):
        await keyed.discovery.GetLoad(pb.GetLoadRequest(), metadata=(("authorization", f"{scheme} {key}"),))


async def test_a_call_is_refused_before_it_has_sent_anything(keyed: Serving) -> None:
    for method in ("Generate", "GenerateMultiplexed", "Abort", "Drain"):
        call = keyed.channel.stream_stream(f"/{ENGINE_SERVICE}/{method}")(timeout=PATIENCE_SECONDS)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_refused_call_says_which_role_it_needs(keyed: Serving) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await keyed.engine.Drain(pb.DrainRequest(), metadata=INFER).read()
    assert caught.value.details() == "this needs the role admin; your key has infer"
    assert detail_of(caught.value).reason == pb.ERROR_REASON_AUTH


async def test_a_key_does_what_it_is_for(keyed: Serving) -> None:
    answer = await keyed.generate(ask(max_tokens=3), metadata=INFER)
    assert len(answer.tokens()) == 3
    frames = keyed.engine.GenerateMultiplexed(iter([submit(1, ask("m", max_tokens=3))]), metadata=INFER)
    assert len((await collect(frames))[1].tokens()) == 3


async def test_health_at_its_own_port_needs_no_key(engine_server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await engine_server(api_key=ALL_KEYS, health_port=0)
    target = next(word for word in caplog.text.split() if word.startswith("127.0.0.1:"))
    async with grpc.aio.insecure_channel(target) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"", timeout=PATIENCE_SECONDS)


# --- whose request it is ----------------------------------------------------------------------------------


OTHER = "canary-other-infer-6620a1"


@pytest.fixture
async def shared(engine_server) -> Serving:
    """A server of two callers that may infer, and an admin."""
    return await engine_server(api_key=(*ALL_KEYS, OTHER), mocker_itl_ms=5)


async def outcome_of(serving: Serving, request_id: str, metadata: Sequence[tuple[str, str]]) -> int:
    answer = await serving.engine.Abort(pb.AbortRequest(request_ids=[request_id]), metadata=metadata)
    [result] = answer.results
    return result.outcome


async def test_the_id_of_another_caller_is_not_known(shared: Serving) -> None:
    call = shared.engine.Generate(ask("mine", max_tokens=4000), metadata=INFER)
    await call.read()
    other = bearing(OTHER)
    assert await outcome_of(shared, "mine", other) == pb.ABORT_OUTCOME_UNKNOWN
    assert (await call.read()).output.token_ids
    assert await outcome_of(shared, "mine", INFER) == pb.ABORT_OUTCOME_ABORTED
    assert [message.output.finish_reason async for message in rest_of(call)][-1] == pb.FINISH_REASON_CANCELLED
    assert await outcome_of(shared, "mine", other) == pb.ABORT_OUTCOME_UNKNOWN
    assert await outcome_of(shared, "mine", INFER) == pb.ABORT_OUTCOME_FINISHED


async def test_an_admin_ends_the_requests_of_all(shared: Serving) -> None:
    calls = [
        shared.engine.Generate(ask(f"of-{number}", max_tokens=4000), metadata=metadata)
        for number, metadata in enumerate((INFER, bearing(OTHER)))
    ]
    for call in calls:
        await call.read()
    assert await outcome_of(shared, "of-1", ADMIN) == pb.ABORT_OUTCOME_ABORTED
    answer = await shared.engine.Abort(pb.AbortRequest(all=True), metadata=ADMIN)
    assert [result.request_id for result in answer.results] == ["of-0"]


async def test_all_are_those_of_the_caller(shared: Serving) -> None:
    """On a multiplexed stream too, whose frames are read by a task of their own."""
    running = shared.engine.GenerateMultiplexed(metadata=bearing(OTHER))
    await running.write(submit(1, ask("theirs", max_tokens=4000)))
    await running.read()
    answer = await shared.engine.Abort(pb.AbortRequest(all=True), metadata=INFER)
    assert not answer.results
    answer = await shared.engine.Abort(pb.AbortRequest(all=True), metadata=bearing(OTHER))
    assert [result.request_id for result in answer.results] == ["theirs"]
    running.cancel()


async def test_an_abort_that_comes_before_the_request_of_another_ends_nothing(shared: Serving) -> None:
    assert await outcome_of(shared, "next", bearing(OTHER)) == pb.ABORT_OUTCOME_UNKNOWN
    answer = await shared.generate(ask("next", max_tokens=2), metadata=INFER)
    assert len(answer.tokens()) == 2
    for aborts in (INFER, ADMIN):
        assert await outcome_of(shared, "soon", aborts) == pb.ABORT_OUTCOME_UNKNOWN
        answer = await shared.generate(ask("soon"), metadata=INFER)
        assert answer.failure is not None
        assert answer.failure.reason == pb.ERROR_REASON_CANCELLED


# --- where keys come from, and where they never go --------------------------------------------------------


async def test_a_file_that_changes_changes_who_is_let_in(engine_server, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line_of(KEYS[Role.READ], Role.READ))
    serving = await engine_server(api_key_file=file)
    await serving.load()
    (tmp_path / "next").write_text(line_of(KEYS[Role.READ], Role.READ) + line_of(OTHER, Role.INFER))
    (tmp_path / "next").rename(file)
    running = serving.engine.Generate(ask(max_tokens=3), metadata=bearing(OTHER))
    assert (await running.read()).output.token_ids
    file.write_text(line_of(KEYS[Role.READ], Role.READ))
    assert [message async for message in rest_of(running)]
    assert (await serving.generate(ask("r2"), metadata=bearing(OTHER))).failure.reason == pb.ERROR_REASON_AUTH
    file.write_text("half a li")
    await serving.load()


async def test_no_key_gets_into_a_log_or_an_answer(keyed: Serving, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    said = [repr(keyed.server.options), repr(keyed.server.access.keys)]
    for metadata in ((), INFER, bearing(UNKNOWN_KEY)):
        for call in (
            keyed.engine.Drain(pb.DrainRequest(), metadata=metadata).read(),
            keyed.discovery.GetEngineInfo(pb.GetEngineInfoRequest(), metadata=metadata),
        ):
            try:
                said.append(str(await call))
            except grpc.aio.AioRpcError as error:
                said.append(repr(error) + str(error.trailing_metadata()))
    assert "canary" not in caplog.text + "".join(said)
