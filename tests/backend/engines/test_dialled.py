"""A client on TLS: whom it believes, and what it shows after its files have changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed
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
