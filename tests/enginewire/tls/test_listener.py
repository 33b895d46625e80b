"""Servers on Python's own TLS: what a handshake shows and asks for after the files have changed."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from enginewire.tls.certificate import CertificateFiles, PemFiles
from enginewire.tls.listener import ListenerTls
from tests.certificates import Authority, Signed


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def said_to(port: int, authority: Authority, caller: Signed | None = None) -> bytes:
    """What the server shows to a caller who then gets an answer, in DER. Raises OSError without one."""
    reader, writer = await connected(port, authority, caller)
    try:
        await is_answered(reader, writer)
        return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()


async def connected(port: int, authority: Authority, caller: Signed | None = None):
    context = ssl.create_default_context(cafile=authority.file)
    if caller is not None:
        context.load_cert_chain(caller.certificate, caller.key)
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")


async def is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"x")
    if await reader.read(1) != b"x":
        raise ConnectionResetError


def der(signed: Signed) -> bytes:
    return ssl.PEM_cert_to_DER_cert(signed.certificate.read_text())


async def test_each_handshake_has_the_newest_files_and_no_connection_is_cut(tmp_path: Path) -> None:
    authority, following = Authority(tmp_path), Authority(tmp_path, "following")
    mine, caller = authority.signed("mine"), authority.signed("caller")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes())
    files = CertificateFiles(PemFiles(mine.certificate, mine.key, trusted), "server")
    context = ListenerTls(files, requires_client=True).ssl_context()
    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        first = await connected(port, authority, caller)
        for number in range(5):
            renewed = authority.signed(f"renewed{number}")
            mine.replace_by(renewed)
            assert await said_to(port, authority, caller) == der(renewed)
            await is_answered(*first)
        with pytest.raises(OSError):  # noqa: PT011  # which one depends on who hangs up first
            await said_to(port, authority)
        trusted.write_bytes(following.file.read_bytes())
        with pytest.raises(OSError):  # noqa: PT011  # as above
            await said_to(port, authority, caller)
        assert await said_to(port, authority, following.signed("new")) == der(renewed)
        await is_answered(*first)
        first[1].transport.abort()
