"""SEC: who may call what, for servers that ask for keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.run_options import ROLES
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.methods import methods
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

NO_MESSAGE: Final = b"\xff"
"""What no message can be: whoever lets the call through does nothing with it."""
UNKNOWN_KEY: Final = "a-key-that-nobody-has-ever-made-0123456789"
AUTH_CODES: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

READ: Final = frozenset(
    {
        "DiscoveryService.GetEngineInfo",
        "DiscoveryService.GetLoad",
        "DiscoveryService.WatchLoad",
        "DiscoveryService.GetTokenizer",
        "KvService.GetKvEventSources",
        "AdminService.ListAdapters",
        "Health.Check",
        "Health.Watch",
    }
)
INFER: Final = frozenset(
    {
        "EngineService.Generate",
        "EngineService.GenerateMultiplexed",
        "EngineService.Abort",
        "EmbeddingService.Embed",
    }
)
"""All other RPCs are for operators."""


@check("SEC-01")
async def strangers_are_not_served(ctx: Context) -> None:
    """No key, a wrong one, a right one twice over or as something else, at every RPC."""
    known = ctx.session.options.keys[-1][1]
    for keys in ((), (UNKNOWN_KEY,), (known + "x",), (known[:-1],), (known, UNKNOWN_KEY)):
        for name in served():
            seen = await _call(ctx, name, *keys)
            expect_equal(seen.code, grpc.StatusCode.UNAUTHENTICATED, f"{name} answered a stranger otherwise")
            _expect_reason(seen)


@check("SEC-02")
async def a_role_goes_no_further(ctx: Context) -> None:
    """Every RPC with the keys of the roles below its own."""
    pairs = [(name, key) for name, role, key in _pairs(ctx) if ROLES.index(role) < _least(name)]
    if not pairs:
        raise NotApplicable("needs --read-key or --infer-key: an admin may do everything")
    for name, key in pairs:
        seen = await _call(ctx, name, key)
        expect_equal(seen.code, grpc.StatusCode.PERMISSION_DENIED, f"{name} is not for this role")
        _expect_reason(seen)


@check("SEC-03")
async def a_role_goes_as_far_as_that(ctx: Context) -> None:
    """Every RPC with the keys of its own role and of those above it."""
    for name, role, key in _pairs(ctx):
        if ROLES.index(role) >= _least(name):
            seen = await _call(ctx, name, key)
            expect(seen.code not in AUTH_CODES, f"{name} is for {role}", seen=seen.status)


@check("SEC-04")
async def a_refused_call_gets_the_status_alone(ctx: Context) -> None:
    """Real requests, that would have been answered, from a stranger; then calls without a message."""
    session = ctx.session
    client = session.client(metadata=session.connection.with_keys(UNKNOWN_KEY).metadata)
    for name, request in (
        ("DiscoveryService.GetLoad", pb.GetLoadRequest()),
        ("EngineService.Generate", ctx.request(max_tokens=1)),
        ("EngineService.Abort", pb.AbortRequest(request_ids=["nobody"])),
    ):
        _is_status_alone(await client.ask(name, request, timeout=ctx.bounds.answer))
    for name in served():
        _is_status_alone(await client.call(name, _no_requests(), timeout=ctx.bounds.answer).finish())


async def _no_requests() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for request in nothing:
        yield request


def _is_status_alone(seen: Exchange) -> None:
    expect(not seen.arrived, f"{seen.method} sent a stranger a message", seen=seen.status)
    expect_equal(seen.code, grpc.StatusCode.UNAUTHENTICATED, f"{seen.method} answered a stranger otherwise")


def served() -> Iterator[str]:
    """RPCs of engine servers."""
    return (name for name in methods() if not name.startswith("BackendService."))


def _pairs(ctx: Context) -> Iterator[tuple[str, str, str]]:
    return ((name, role, key) for name in served() for role, key in ctx.session.options.keys)


def _least(name: str) -> int:
    return 0 if name in READ else 1 if name in INFER else 2


async def _call(ctx: Context, name: str, *keys: str) -> Exchange:
    session = ctx.session
    client = session.client(metadata=session.connection.with_keys(*keys).metadata)
    # By its path: a method's kind would say how many messages the client may send and read.
    return await client.call(methods()[name].path, NO_MESSAGE, timeout=ctx.bounds.answer).finish()


def _expect_reason(seen: Exchange) -> None:
    expect(
        seen.detail is not None and seen.detail.reason == pb.ERROR_REASON_AUTH,
        "a refusal for the key has another reason",
        expected="AUTH",
        seen=seen.detail,
    )
