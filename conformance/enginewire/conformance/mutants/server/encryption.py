"""Servers that speak TLS with whom they should not, or not with whom they should."""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from typing import Final

from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.variants.on_tls import OnTls
from enginewire.conformance.wire.handshake import OLD, STRANGER

HANDSHAKE: Final = b"\x16"
"""What TLS begins with."""
NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL."""


@mutant("plain_text_beside_tls", kills="TLS-01")
class PlainTextBesideTls(OnTls):
    """It looks at the first byte of a connection, and serves what is not encrypted as well."""

    async def connected(self, connection: socket.socket, context: ssl.SSLContext | None, path: str) -> None:
        readable, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(connection)
        is_tls = connection.recv(1, socket.MSG_PEEK) == HANDSHAKE
        await super().connected(connection, context if is_tls else None, path)


@mutant("old_versions_are_spoken", kills="TLS-02")
class OldVersionsAreSpoken(OnTls):
    def context(self) -> ssl.SSLContext:
        context = super().context()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.set_ciphers(OLD)
            context.minimum_version = ssl.TLSVersion.TLSv1
        return context


@mutant("http_1_is_preferred", kills="TLS-03")
class Http1IsPreferred(OnTls):
    def context(self) -> ssl.SSLContext:
        context = super().context()
        context.set_alpn_protocols(["http/1.1", "h2"])
        return context


@mutant("one_handshake_at_a_time", kills="TLS-04")
class OneHandshakeAtATime(OnTls):
    """It takes the next connection when the one before has said who it is."""

    async def accepted(self, connection: socket.socket, context: ssl.SSLContext, path: str) -> None:
        while True:
            await asyncio.sleep(0.01)
            try:
                beginning = connection.recv(6, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            if len(beginning) in (0, 6):
                break
        await super().accepted(connection, context, path)


@mutant("certificates_are_not_asked_for", kills=("TLS-05", "TLS-06"))
class CertificatesAreNotAskedFor(OnTls):
    def context(self) -> ssl.SSLContext:
        context = super().context()
        context.verify_mode = ssl.CERT_NONE
        return context


@mutant("a_certificate_may_be_left_out", kills="TLS-05")
class ACertificateMayBeLeftOut(OnTls):
    def context(self) -> ssl.SSLContext:
        context = super().context()
        context.verify_mode = ssl.CERT_OPTIONAL
        return context


@mutant("any_authority_will_do", kills="TLS-05")
class AnyAuthorityWillDo(OnTls):
    trusted = (*OnTls.trusted, STRANGER)

    def context(self) -> ssl.SSLContext:
        context = super().context()
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


@mutant("certificates_do_not_expire", kills="TLS-06")
class CertificatesDoNotExpire(OnTls):
    def context(self) -> ssl.SSLContext:
        context = super().context()
        context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
        return context
