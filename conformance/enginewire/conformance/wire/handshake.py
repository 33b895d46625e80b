"""Handshakes of TLS by hand: with what gRPC's own client never offers, and some that never end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import warnings
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from enginewire.conformance.wire.connection import Connection, Tls
from enginewire.conformance.wire.violation import NotApplicable

CERTIFICATES: Final = Path(__file__).with_name("certificates")
"""Those of the kit itself. `.ci/make/certificates.py` wrote them; nobody else believes their authority."""
STRANGER: Final = CERTIFICATES / "stranger.pem"

OLD: Final = "@SECLEVEL=0:ALL"
"""Without it OpenSSL offers no version below 1.2."""
NOT_BUILT: Final = "NO_PROTOCOLS_AVAILABLE"

UNFINISHED: Final = (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x04abcd")
"""How handshakes begin that lead nowhere: with nothing, with half a record, and with what is none."""


async def chosen_protocol(connection: Connection, offered: Sequence[str]) -> str | None:
    """What the server chooses of these by ALPN. Raises OSError where it ends the handshake."""
    context = _context(connection.tls or Tls())
    context.set_alpn_protocols(list(offered))
    return (await _shaken(connection, context)).selected_alpn_protocol()


async def spoken_version(connection: Connection, newest: ssl.TLSVersion) -> str | None:
    """The version that a server speaks with a client that knows none above `newest`; None when it refuses.

    NotApplicable where the OpenSSL of this machine cannot offer it.
    """
    context = _context(connection.tls or Tls())
    with warnings.catch_warnings():
        # Old versions are asked for on purpose.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.set_ciphers(OLD)
        context.minimum_version = min(newest, ssl.TLSVersion.TLSv1)
        context.maximum_version = newest
    try:
        return (await _shaken(connection, context)).version()
    except ssl.SSLError as error:
        if error.reason == NOT_BUILT:
            raise NotApplicable(f"the OpenSSL of this machine cannot offer {newest.name}") from None
        return None
    except OSError:
        return None


@contextlib.asynccontextmanager
async def unfinished(connection: Connection, count: int) -> AsyncIterator[None]:
    """So many connections of each kind whose handshake never ends."""
    writers = []
    try:
        for number in range(count * len(UNFINISHED)):
            _, writer = await asyncio.open_connection(*connection.address)
            writer.write(UNFINISHED[number % len(UNFINISHED)])
            writers.append(writer)
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


def _context(tls: Tls) -> ssl.SSLContext:
    """A client with the right certificate. What the server shows was checked by the calls before."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if tls.certificate:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


async def _shaken(connection: Connection, context: ssl.SSLContext) -> ssl.SSLObject:
    name = (connection.tls and connection.tls.name) or connection.address[0]
    _, writer = await asyncio.open_connection(*connection.address, ssl=context, server_hostname=name)
    made: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.transport.abort()
    return made
