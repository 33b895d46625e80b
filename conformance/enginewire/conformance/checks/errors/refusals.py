"""ERR-11 to ERR-14, ERR-18, ERR-19, ERR-25: what all refusals have in common."""

from __future__ import annotations

import re
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.adapters import load, new_name, unload
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.fields import without_indexes
from enginewire.conformance.session.invalid_requests import (
    Refused,
    invalid_requests,
    long_texts,
    refusals,
    send,
)
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.foreign import google_rpc
from enginewire.conformance.wire.loads import describe_load, is_idle
from enginewire.conformance.wire.secrets import SECRETS
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

MOST_DETAIL_BYTES: Final = 4096
REPEATS: Final = 10
FEW: Final = 2
"""Tokens of a good request."""
CUT: Final = b'{"cut": '
ANY_PATH: Final = re.compile(r"(?<![\w.:/])/[\w.-]+/[\w.-]+")


@check("ERR-11", needs=SHAPE)
async def validation_comes_first(ctx: Context) -> None:
    """No message before a refusal."""
    for refused in await refusals(ctx):
        count = len(refused.exchange.arrived)
        expect(not count, f"a message came before the refusal of {refused.invalid.wrong}", seen=count)


@check("ERR-12", needs=SHAPE)
async def refusals_have_details(ctx: Context) -> None:
    """Reason, field, retryable, and their size, also where what is refused is a long text."""
    for refused in await refusals(ctx):
        _require_details(refused)
    for refused in await send(ctx, long_texts(ctx)):
        ctx.show(refused.exchange)
        _require_small(refused)


@check("ERR-13", needs=SHAPE)
async def refusals_do_not_change(ctx: Context) -> None:
    """The suite ten times."""
    first = {refused.invalid.wrong: refused.exchange.code for refused in await refusals(ctx)}
    for _ in range(REPEATS - 1):
        for refused in await send(ctx, [each for each in invalid_requests(ctx) if each.wrong in first]):
            wrong, code = refused.invalid.wrong, refused.exchange.code
            if code is not first[wrong]:
                ctx.show(refused.exchange)
                raise Violation(
                    f"{wrong} gets another code each time",
                    expected=first[wrong],
                    seen=refused.exchange.status,
                )


@check("ERR-14", needs=SHAPE, alone=True)
async def refusals_leave_nothing(ctx: Context) -> None:
    """The load of the idle server, before and after the suite."""
    known = {refused.invalid.wrong for refused in await refusals(ctx)}
    before = await ctx.idle()
    for refused in await send(ctx, [invalid for invalid in invalid_requests(ctx) if invalid.wrong in known]):
        after = await ctx.client.load()
        message = "a refused request holds something"
        expect(is_idle(after), message, expected=describe_load(pb.Load()), seen=describe_load(after))
        for name in ("kv_blocks_cached", "waiting_tokens", "tokens_generated", "pending_transfers"):
            expect_equal(
                getattr(after, name), getattr(before, name), f"{refused.invalid.wrong} changed Load.{name}"
            )


@check("ERR-25", needs=(*SHAPE, "ERR-12"))
async def generic_tools_can_read_refusals(ctx: Context) -> None:
    """The reason and the field of each, in words of google.rpc."""
    for refused in await refusals(ctx):
        wrong, detail = refused.invalid.wrong, refused.exchange.detail or pb.ErrorDetail()
        status = refused.exchange.status_details or pb.Status()
        info = google_rpc.unpacked(status, "ErrorInfo")
        seen = f"{info.domain} {info.reason}" if info else "none"
        expected = f"{google_rpc.DOMAIN} {google_rpc.name_of(detail.reason)}"
        expect_equal(seen, expected, f"the google.rpc.ErrorInfo of {wrong} is another one")
        bad = google_rpc.unpacked(status, "BadRequest")
        named = [violation.field for violation in bad.field_violations] if bad else []
        message = f"the google.rpc.BadRequest of {wrong} names another field"
        expect_equal(named, [detail.field] if detail.field else [], message)


@check("ERR-18", needs=SHAPE)
async def messages_tell_no_secrets(ctx: Context) -> None:
    """Texts and details of all refusals, and of JSON that is cut where that is read."""
    cut = ctx.request(extra_args=CUT)
    told = [(refused.invalid.request, refused.exchange) for refused in await refusals(ctx)]
    for request, exchange in (*told, (cut, await ctx.refused(cut))):
        said = _said(exchange)
        _tells_nothing(said)
        ids = request.request.token_ids[:3]
        echoed = len(ids) == 3 and re.search(r"\D+".join(map(str, ids)), said)
        expect(not echoed, "a message contains the prompt", seen=said[:120])


@check("ERR-18", variant="adapter", gate="lora", needs=("ERR-18", "LOR-01"), alone=True)
async def refused_adapters_tell_no_paths(ctx: Context) -> None:
    """A source that is not there: where it would be is for the host alone."""
    missing, name = f"{ctx.session.options.sources(1)[0]}-that-is-not-there", new_name(ctx)
    exchange = await load(ctx, name, missing)
    if exchange.is_ok:
        await unload(ctx, name)
        raise NotApplicable("a source that is not there is loaded, as far as one can see")
    said = _said(exchange).replace(missing, "")
    _tells_nothing(said)
    found = ANY_PATH.search(said)
    expect(not found, "a message contains a path of the host", seen=found and said[:120])


def _tells_nothing(said: str) -> None:
    for what, pattern in SECRETS.items():
        found = pattern.search(said)
        expect(
            not found,
            f"a message contains {what}",
            seen=found and said[max(found.start() - 40, 0) :][:120],
        )


@check("ERR-19", needs=SHAPE, alone=True)
async def invalid_requests_are_survived(ctx: Context) -> None:
    """Each of the suite, and after each of them a good request."""
    life = (await ctx.client.load()).engine_lifetime_id
    tokens = (await ctx.generate(ctx.request(max_tokens=FEW))).tokens
    for invalid in invalid_requests(ctx):
        exchange = await ctx.refused(invalid.request)
        again = await ctx.start(ctx.request(max_tokens=FEW)).end()
        message = f"after {invalid.wrong} ({exchange.status}) a good request fails"
        expect(again.exchange.is_ok, message, expected="OK", seen=again.exchange.status)
        expect_equal(again.tokens, tokens, f"after {invalid.wrong} a good request has other tokens")
    await _lists_are_forgotten(ctx)
    now = (await ctx.client.load()).engine_lifetime_id
    expect_equal(now, life, "the engine began another life after an invalid request")


async def _lists_are_forgotten(ctx: Context) -> None:
    """Of a request that was refused because they leave nothing, the token that would have come first."""
    if not (ctx.capabilities.allowed_token_ids and ctx.capabilities.bad_words):
        return
    greedy = await ctx.greedy()
    best, other = greedy.tokens[0], next(each for each in greedy.prompt if each != greedy.tokens[0])
    word = pb.TokenSequence(token_ids=[best])
    await ctx.refused(ctx.request(allowed_token_ids=[best], bad_words_token_ids=[word]))
    request = ctx.request(token_ids=greedy.prompt, max_tokens=1, allowed_token_ids=[other])
    message = "after lists that leave nothing a good request has a token that it does not allow"
    expect_equal((await ctx.generate(request)).tokens, [other], message)


def _require_details(refused: Refused) -> None:
    exchange, wrong = refused.exchange, refused.invalid.wrong
    detail, details = exchange.detail, exchange.status_details
    if detail is None or details is None:
        raise Violation(f"the refusal of {wrong} carries no ErrorDetail", seen=exchange.status)
    expect(detail.reason, f"the refusal of {wrong} has no reason", seen=detail)
    if detail.reason == refused.invalid.reason:
        seen = without_indexes(detail.field)
        expect(seen, f"the refusal of {wrong} names no field", expected=refused.invalid.field)
    expect(not detail.retryable, f"the refusal of {wrong} says retryable", seen=detail)
    _require_small(refused)


def _require_small(refused: Refused) -> None:
    details = refused.exchange.status_details or pb.Status()
    size = sum(entry.ByteSize() for entry in details.details)
    expect(
        size < MOST_DETAIL_BYTES,
        f"the details of {refused.invalid.wrong} are too large",
        expected=f"under {MOST_DETAIL_BYTES} bytes",
        seen=size,
    )


def _said(exchange: Exchange) -> str:
    details = exchange.status_details or pb.Status()
    texts = [exchange.text, str(exchange.detail or "")]
    return "\n".join([*texts, *(entry.value.decode("latin-1") for entry in details.details)])
