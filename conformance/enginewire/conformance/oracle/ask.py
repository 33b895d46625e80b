"""Sends cases to the target, alone or together, and gathers what came. Judges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc

from enginewire import v1 as pb
from enginewire.conformance.oracle.case import Case, Cut
from enginewire.conformance.oracle.draw import Offer
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.requests import Value, change
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.exchange import Exchange, detail_of
from enginewire.conformance.wire.multiplexed import Handle, Multiplexed
from enginewire.conformance.wire.stream import Choice, Stream, choices_of, num_choices
from enginewire.conformance.wire.violation import Violation

Changes = dict[str, Value]

Row = Mapping[int, float]
"""The log-probabilities of one position, by id, as far as they were told."""

BUSY = grpc.StatusCode.RESOURCE_EXHAUSTED

LEAST_SECONDS = 0.01
"""Of a deadline: what passes on the way is of no interest."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came for one case. `status` says OK, or how the request failed."""

    outputs: Sequence[pb.LLMEngineOutput]
    status: str
    exchange: Exchange
    is_busy: bool = False
    """Refused because there was no room beside the others, as CON-03 allows."""
    late: Sequence[object] = ()
    """What came on a multiplexed stream after the end of its handle."""
    detail: pb.ErrorDetail | None = None
    """What the server says about a failure."""

    @property
    def choices(self) -> dict[int, Choice]:
        """The outputs of each choice."""
        return choices_of(self.outputs)


@dataclass(frozen=True, slots=True)
class Target:
    """Where cases go: one client, so that they are evidence of those checks alone that show them.

    `under`: what each run was asked for beside its prompt, as are all cases that repeat it; empty: nothing.
    `rows`: what was told of each run, for each of its choices; empty: nothing was asked for.
    """

    ctx: Context
    client: Client
    runs: Sequence[Greedy]
    offer: Offer
    under: Sequence[Changes] = ()
    rows: Sequence[Sequence[Sequence[Row]]] = ()

    def run_of(self, case: Case) -> Greedy:
        """The greedy run that a case repeats."""
        return self.runs[case.prompt]

    def rows_of(self, case: Case, index: int) -> Sequence[Row]:
        """What was told of the tokens that a choice of a case repeats."""
        told = self.rows[case.prompt] if self.rows else ()
        return told[index if self.run_of(case).others else 0] if told else ()

    async def ask(
        self, cases: Sequence[Case], beside: Sequence[Changes] = (), cuts: Sequence[Cut | None] = ()
    ) -> list[Answer]:
        """All at the same time, those that are multiplexed over one stream; in their order.

        `beside`: what else each of them is changed by; `cuts`: where each is left.
        """
        cuts = cuts or [None] * len(cases)
        requests = [
            change(self._request(case), **other)
            for case, other in zip(cases, beside or [{}] * len(cases), strict=True)
        ]
        plain = [number for number, case in enumerate(cases) if not case.multiplexed]
        multiplexed = [number for number, case in enumerate(cases) if case.multiplexed]
        found = await asyncio.gather(
            asyncio.gather(*(self._generate(requests[number], cuts[number]) for number in plain)),
            self._over_one_stream(
                [requests[number] for number in multiplexed], [cuts[number] for number in multiplexed]
            ),
        )
        answers = dict(zip((*plain, *multiplexed), (*found[0], *found[1]), strict=True))
        return [answers[number] for number in range(len(cases))]

    def _request(self, case: Case) -> pb.GenerateRequest:
        request = self.ctx.request()
        changes = case.changes(self.run_of(case), salt=request.request_id)
        request = self.ctx.request(**{**self.under_of(case), **changes})
        # Only now: what does not fit the window may be asked for.
        return change(request, max_tokens=case.asked_for)

    def under_of(self, case: Case) -> Changes:
        """What the run that a case repeats was asked for."""
        return self.under[case.prompt] if self.under else {}

    async def _generate(self, request: pb.GenerateRequest, cut: Cut | None) -> Answer:
        stream = self.ctx.start(request, client=self.client, timeout=self._seconds_until(cut))
        try:
            if cut and not cut.is_late:
                await _leave(stream, cut)
            await stream.end()
        except Violation as violation:
            return Answer(stream.outputs, str(violation), stream.exchange)
        return answer_of(stream)

    def _seconds_until(self, cut: Cut | None) -> float:
        """Of a request that shall be late about there; 0 for another one."""
        bounds = self.ctx.bounds
        return bounds.ttft + cut.tokens * bounds.itl + LEAST_SECONDS if cut and cut.is_late else 0.0

    async def _over_one_stream(
        self, requests: Sequence[pb.GenerateRequest], cuts: Sequence[Cut | None]
    ) -> list[Answer]:
        if not requests:
            return []
        longest = self.ctx.bounds.generation(max(map(_tokens_of, requests)))
        stream = Multiplexed(self.client, 2 * longest)
        submits = [
            stream.submitted(number, request, self._seconds_until(cut) or None)
            for number, (request, cut) in enumerate(zip(requests, cuts, strict=True))
        ]
        # What a reader needs to send it again: there is nothing else on the stream.
        stream.exchange.request = pb.GenerateMultiplexedRequest(submits=submits)
        left = {number: cut.tokens for number, cut in enumerate(cuts) if cut and not cut.is_late}
        later = {number: count for number, count in left.items() if count}
        stream.send(*submits, abort=tuple(left.keys() - later.keys()))
        if len(requests) % 2 and not later:
            stream.half_close()  # nobody has begun, and some may wait
        # What ended too early, or not at all, shows in the handles.
        with suppress(Violation):
            await stream.until_ended(*range(len(requests)), within=longest, left=later)
            stream.half_close()
            await stream.finish()
        status = stream.exchange.status if stream.exchange.code else "OK"
        live = stream.live
        await stream.close()
        await self.ctx.end(live)
        return [_answer_of_handle(stream.handle(number), stream, status) for number in range(len(requests))]


def rows_in(outputs: Sequence[pb.LLMEngineOutput]) -> Iterator[tuple[int, float, Row]]:
    """Each token of some outputs with its log-probability and with all that its row tells."""
    for output in outputs:
        table = output.logprobs
        for number, (token, value) in enumerate(zip(output.token_ids, table.token_logprobs, strict=False)):
            top = slice(number * table.top_n, (number + 1) * table.top_n)
            yield (
                token,
                value,
                {**dict(zip(table.top_token_ids[top], table.top_logprobs[top], strict=False)), token: value},
            )


async def _leave(stream: Stream, cut: Cut) -> None:
    """Cancel the call when it has so many tokens; one that ends before is read to its end."""
    if not await stream.call.accepted():
        return
    while sum(len(choice.tokens) for choice in stream.choices.values()) < cut.tokens:
        if await anext(stream.call, None) is None:
            return
    stream.cancel()


def answer_of(stream: Stream) -> Answer:
    """Of a call that has ended."""
    status = "OK" if stream.exchange.is_ok else stream.exchange.status
    exchange = stream.exchange
    return Answer(stream.outputs, status, exchange, exchange.code is BUSY, detail=exchange.detail)


def _tokens_of(request: pb.GenerateRequest) -> int:
    return request.request.stop_conditions.max_tokens * num_choices(request.request)


def _answer_of_handle(handle: Handle, stream: Multiplexed, stream_status: str) -> Answer:
    """Of one handle; the status of the stream is that of all that had no end."""
    status = "OK" if handle.has_ended else stream_status
    code, detail = handle.status.code if handle.status else 0, None
    if handle.status:
        status = f"{_name(code)}: {handle.status.message}"
        detail = detail_of(handle.status)
    return Answer(handle.outputs, status, stream.exchange, code == BUSY.value[0], handle.late, detail)


def _name(number: int) -> str:
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), str(number))
