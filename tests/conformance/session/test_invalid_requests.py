from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from enginewire import v1 as pb
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.session.bounds import Bounds
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.invalid_requests import (
    Invalid,
    fails_later,
    invalid_requests,
    refusals,
    send,
)
from enginewire.conformance.wire.violation import expect, expect_equal
from tests.conformance.judging import judged, made_up


class TakesEverything(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        """Accept it, as a small valid request."""
        request.request.CopyFrom(pb.PreprocessedRequest(token_ids=[5, 6]))
        request.request.stop_conditions.max_tokens = 1


async def in_check(look: Callable[[Context], Awaitable[None]], make: type[Reference] = Reference) -> Outcome:
    """What becomes of a check that does this."""
    report = await judged(make, [made_up("STR-01", look)])
    return next(outcome for outcome in report.outcomes if outcome.key == "STR-01")


async def test_each_is_refused_for_what_it_says() -> None:
    async def look(ctx: Context) -> None:
        suite = invalid_requests(ctx)
        refused = await send(ctx, suite)
        expect_equal(len(refused), len(suite), "one of the suite was served")
        for each in refused:
            detail = each.exchange.detail or pb.ErrorDetail()
            seen = (detail.reason, detail.field.split("[")[0])
            expect_equal(seen, (each.invalid.reason, each.invalid.field), each.invalid.wrong)

    assert (await in_check(look)).status is Status.PASS


async def test_each_has_an_id_of_its_own_and_something_of_its_own_wrong() -> None:
    async def look(ctx: Context) -> None:
        suite: list[Invalid] = invalid_requests(ctx)
        valid_ids = [each.request.request_id for each in suite if each.field != "request_id"]
        expect_equal(len(set(valid_ids)), len(valid_ids), "an id is used twice")
        expect_equal(len({each.wrong for each in suite}), len(suite), "two are wrong in the same way")

    assert (await in_check(look)).status is Status.PASS


async def test_what_is_served_is_left_out() -> None:
    async def look(ctx: Context) -> None:
        expect(not await send(ctx, invalid_requests(ctx)[2:8]), "a request that was served counts as refused")

    assert (await in_check(look, TakesEverything)).status is Status.PASS


async def test_what_is_not_answered_in_time_is_left_out() -> None:
    is_measured = asyncio.Event()

    class AnswersTooLate(Reference):
        async def generate(
            self, request: pb.GenerateRequest, call: Call
        ) -> AsyncIterator[pb.GenerateResponse]:
            if is_measured.is_set():
                await asyncio.Event().wait()
            async for response in super().generate(request, call):
                yield response

    async def look(ctx: Context) -> None:
        is_measured.set()
        ctx.session.bounds = Bounds(scale=0.01)
        expect(not await send(ctx, invalid_requests(ctx)[2:4]), "no answer counts as a refusal")

    assert (await in_check(look, AnswersTooLate)).status is Status.PASS


async def test_a_server_that_refuses_nothing_is_found_out() -> None:
    async def look(ctx: Context) -> None:
        await refusals(ctx)

    outcome = await in_check(look, TakesEverything)
    assert (outcome.status, outcome.message) == (Status.FAIL, "not one invalid request was refused")


async def test_the_suite_is_sent_once_for_all_checks_and_shown_by_each() -> None:
    sent: list[int] = []

    class Counting(Reference):
        def validate(self, request: pb.GenerateRequest) -> None:
            sent.append(1)
            super().validate(request)

    async def look(ctx: Context) -> None:
        suite, before = len(invalid_requests(ctx)), len(sent)
        first, second = await asyncio.gather(refusals(ctx), refusals(ctx))
        expect(first is second, "the suite was sent again")
        expect_equal(len(sent) - before, suite, "requests that were checked")
        expect_equal(ctx.exchanges[-1].code, first[-1].exchange.code, "the evidence is another one")

    assert (await in_check(look, Counting)).status is Status.PASS


@pytest.mark.parametrize("field", ["context_length", "maximum_client_revision"])
async def test_what_a_server_does_not_say_is_not_asked(field: str) -> None:
    wrong = {"context_length": "too long a prompt", "maximum_client_revision": "a newer client"}[field]

    async def look(ctx: Context) -> None:
        expect(wrong in [each.wrong for each in invalid_requests(ctx)], "it is missing")
        if field == "context_length":
            ctx.session.info.config.ClearField("context_length")
        else:
            ctx.session.info.maximum_client_revision = 2**32 - 1
        expect(wrong not in [each.wrong for each in invalid_requests(ctx)], "it is there")

    assert (await in_check(look)).status is Status.PASS


async def test_a_request_that_fails_later_is_accepted_first() -> None:
    async def look(ctx: Context) -> None:
        stream = await ctx.start(fails_later(ctx)).end()
        expect_equal(len(stream.tokens), 1, "it did not fail behind its first token")
        detail = stream.exchange.detail or pb.ErrorDetail()
        expect_equal(detail.field, "sampling_options.allowed_token_ids", "its status names another field")

    assert (await in_check(look)).status is Status.PASS
