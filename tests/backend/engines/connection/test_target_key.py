"""The key that a client of ours brings: with every kind of call, and the one that its file holds now."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.access.known_callers import InvalidKeys
from enginewire.access.roles import Role
from enginewire.access.target_key import TargetKey
from enginewire.backend.bench.options import BenchOptions
from enginewire.backend.commands.options import TopOptions
from enginewire.backend.config import BackendOptions
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed
from enginewire.calling.channel import open_channel
from enginewire.calling.trust import Trust, trust_of
from enginewire.options import OptionError
from tests.keys import ALL_KEYS, KEYS, UNKNOWN_KEY, bearing, line_of
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Serving, ask

PROGRAMS = pytest.mark.parametrize("program", [BackendOptions, BenchOptions, TopOptions])


@pytest.fixture(autouse=True)
def idle_as_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fixture asks of every server at the end, it asks with a key."""

    async def load(serving: Serving) -> pb.Load:
        metadata = bearing(KEYS[Role.READ])
        return (await serving.discovery.GetLoad(pb.GetLoadRequest(), metadata=metadata)).load

    monkeypatch.setattr(Serving, "load", load)


@pytest.mark.parametrize("multiplexed", [True, False])
async def test_a_client_with_a_key_does_all_that_its_role_may(engine_server, multiplexed: bool) -> None:
    serving = await engine_server(api_key=ALL_KEYS)
    trust = Trust(api_key=TargetKey(KEYS[Role.INFER]))
    async with EngineClient(serving.server.target, multiplexed=multiplexed, trust=trust) as client:
        await client.wait_ready(PATIENCE_SECONDS)
        assert await client.tokenizer_files()
        stream = await client.submit(ask(max_tokens=3), metadata={"traceparent": ""})
        tokens = 0
        while chunks := await stream.read():
            tokens += sum(len(chunk.token_ids) for chunk in chunks)
        assert tokens == 3
        assert (await client.abort(["r1"], "late")).results[0].outcome == pb.ABORT_OUTCOME_FINISHED


async def test_a_client_with_a_wrong_key_is_told_so_at_once(engine_server) -> None:
    serving = await engine_server(api_key=ALL_KEYS)
    for trust in (Trust(), Trust(api_key=TargetKey(UNKNOWN_KEY))):
        async with EngineClient(serving.server.target, trust=trust) as client:
            with pytest.raises(RequestFailed) as caught:
                await client.wait_ready(PATIENCE_SECONDS)
            assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
            assert caught.value.reason == pb.ERROR_REASON_AUTH
            assert "canary" not in str(caught.value)


async def test_the_next_call_brings_the_key_that_the_file_holds_now(engine_server, tmp_path: Path) -> None:
    keys, mine = tmp_path / "keys", tmp_path / "mine"
    reader = line_of(KEYS[Role.READ], Role.READ)
    keys.write_text(reader + line_of(KEYS[Role.INFER], Role.INFER))
    mine.write_text(f"{KEYS[Role.INFER]}\n")
    serving = await engine_server(api_key_file=keys)
    channel = open_channel(serving.server.target, trust=Trust(api_key=TargetKey(file=mine)))
    async with channel:
        await channel.channel_ready()
        stub = pb.DiscoveryServiceStub(channel)
        await stub.GetLoad(pb.GetLoadRequest())
        keys.write_text(reader + line_of(UNKNOWN_KEY, Role.INFER))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.GetLoad(pb.GetLoadRequest())
        mine.write_text(UNKNOWN_KEY)
        await stub.GetLoad(pb.GetLoadRequest())
        mine.write_text("")
        await stub.GetLoad(pb.GetLoadRequest())
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


@PROGRAMS
def test_every_program_that_connects_has_the_options(program, tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text(UNKNOWN_KEY)
    assert trust_of(program()).api_key is None
    for given in ({"target_api_key": UNKNOWN_KEY}, {"target_api_key_file": file}):
        options = program(**given)
        key = trust_of(options).api_key
        assert key is not None
        assert key.authorization == ("authorization", f"Bearer {UNKNOWN_KEY}")
        assert "canary" not in repr(options) + repr(trust_of(options))
    for given in (
        {"target_api_key": "canary"},
        {"target_api_key": UNKNOWN_KEY, "target_api_key_file": file},
        {"target_api_key_file": tmp_path / "none"},
    ):
        with pytest.raises(OptionError, match=r"^--target-api-key") as caught:
            program(**given)
        assert "canary" not in str(caught.value)


def test_a_key_is_not_shown(tmp_path: Path) -> None:
    assert "canary" not in repr(Trust(api_key=TargetKey(UNKNOWN_KEY)))
    (tmp_path / "mine").write_text("canary key")
    with pytest.raises(InvalidKeys) as caught:
        TargetKey(file=tmp_path / "mine")
    assert "canary" not in str(caught.value)
