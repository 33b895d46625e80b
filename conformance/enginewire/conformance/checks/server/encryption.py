"""TLS: what a server does with connections, for servers that are reached over TLS."""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.server.security import NO_MESSAGE, served
from enginewire.conformance.running.registry import check
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.handshake import STRANGER, chosen_protocol, spoken_version, unfinished
from enginewire.conformance.wire.methods import methods
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

OFFERS: Final = (("h2",), ("http/1.1", "h2"), ("spdy/3", "h2", "http/1.1"))
UNFINISHED: Final = 8
"""Of each kind: more than a server has threads for."""
NO_ANSWER: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)


@check("TLS-01", in_company=False)
async def plain_text_is_not_answered(ctx: Context) -> None:
    """Every RPC without TLS."""
    plain = replace(ctx.session.connection, tls=None)
    await _is_not_answered(ctx, plain, "in plain text", (grpc.StatusCode.UNAVAILABLE,))


@check("TLS-02", in_company=False)
async def old_versions_are_refused(ctx: Context) -> None:
    """A client that knows nothing newer than TLS 1.1, and one that knows TLS 1.0 only."""
    for newest in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1):
        spoken = await spoken_version(ctx.session.connection, newest)
        expect(spoken is None, "an old version of TLS is spoken", expected="no handshake", seen=spoken)


@check("TLS-03", in_company=False)
async def http_2_is_chosen(ctx: Context) -> None:
    """Offered alone, and among others that come before and after it."""
    for offered in OFFERS:
        try:
            chosen = await chosen_protocol(ctx.session.connection, offered)
        except OSError as error:
            raise Violation(f"the server ended a handshake that offers {offered}", seen=error) from None
        expect_equal(chosen, "h2", f"another protocol than HTTP/2 was chosen of {', '.join(offered)}")


@check("TLS-04", in_company=False, alone=True)
async def handshakes_do_not_wait_for_each_other(ctx: Context) -> None:
    """Connections that say nothing, half of something, or nonsense; then a caller with a new connection."""
    async with unfinished(ctx.session.connection, UNFINISHED):
        client = ctx.connect()
        seen = await client.ask("DiscoveryService.GetLoad", pb.GetLoadRequest(), timeout=ctx.bounds.answer)
        expect(seen.is_ok, "handshakes of others keep a caller waiting", expected="OK", seen=seen.status)


@check("TLS-05", in_company=False)
async def strangers_are_not_answered(ctx: Context) -> None:
    """Every RPC without a certificate, and with one of another authority."""
    for certificate, how in (
        (None, "without a certificate"),
        (STRANGER, "with the certificate of a stranger"),
    ):
        await _is_not_answered(ctx, ctx.session.connection.showing(certificate), how)


@check("TLS-06", in_company=False)
async def certificates_expire(ctx: Context) -> None:
    """Every RPC with a certificate that would have been taken before."""
    expired = ctx.session.options.expired_certificate
    if expired is None:
        raise NotApplicable("needs --tls-expired-cert: one of an authority that the target believes")
    await _is_not_answered(
        ctx, ctx.session.connection.showing(expired), "with a certificate that has expired"
    )


async def _is_not_answered(
    ctx: Context, connection: Connection, how: str, codes: tuple[grpc.StatusCode, ...] = NO_ANSWER
) -> None:
    client = ctx.connect(connection)
    for name in served():
        # Whoever lets it through says that it is no message.
        seen = await client.ask(methods()[name].path, NO_MESSAGE, timeout=ctx.bounds.answer)
        expect(not seen.arrived, f"{name} sent a message to a caller {how}", seen=seen.status)
        names = " or ".join(code.name for code in codes)
        expect(seen.code in codes, f"{name} answers a caller {how}", expected=names, seen=seen.status)
