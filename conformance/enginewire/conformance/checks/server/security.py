"""SEC: who may call what, for servers that ask for keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.run_options import ROLES
from enginewire.conformance.wire.client import Client
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
HARMLESS: Final = sorted(READ | INFER | {"KvService.SubscribeKvEvents"})
"""Whoever lets such a call through takes no harm."""


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
    """Real requests, that would have been answered, from a stranger; then calls without a message.

    And from those whose role does not allow them. What comes beside messages is for the monitor to see.
    """
    session = ctx.session
    client = session.client(metadata=session.connection.with_keys(UNKNOWN_KEY).metadata)
    for name in HARMLESS:
        _is_status_alone(await _really_call(ctx, client, name))
    for name in served():
        _is_status_alone(await client.call(name, _no_requests(), timeout=ctx.bounds.answer).finish())
    for role, key in session.options.keys:
        known = session.client(metadata=session.connection.with_keys(key).metadata)
        for name in HARMLESS:
            if ROLES.index(role) < _least(name):
                _is_status_alone(await _really_call(ctx, known, name), grpc.StatusCode.PERMISSION_DENIED)


async def _really_call(ctx: Context, client: Client, name: str) -> Exchange:
    """With a message that whoever may call it gets an answer to."""
    request = methods()[name].request()
    if isinstance(request, pb.GenerateRequest):
        request = ctx.request(max_tokens=1)
    elif isinstance(request, pb.AbortRequest):
        request.request_ids.append("nobody")
    elif isinstance(request, pb.EmbedRequest):
        request.request_id = ctx.request().request_id
        request.request.token_ids.add(token_ids=ctx.prompt(1))
    elif isinstance(request, pb.GenerateMultiplexedRequest):
        request.submits.add(handle=1, generate=ctx.request(max_tokens=1))
    # The one message and its end at once, of a stream as well: a client that still writes to a call that has
    # ended tells of its own trouble.
    return await client.ask(name, request, timeout=ctx.bounds.answer)


async def _no_requests() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for request in nothing:
        yield request


def _is_status_alone(seen: Exchange, code: grpc.StatusCode = grpc.StatusCode.UNAUTHENTICATED) -> None:
    expect(not seen.arrived, f"{seen.method} sent a message to whom it refuses", seen=seen.status)
    expect_equal(seen.code, code, f"{seen.method} answered whom it has to refuse otherwise")


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
