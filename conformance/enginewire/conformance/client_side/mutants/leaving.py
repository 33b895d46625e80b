"""Backends that go on for a caller that has gone away, or whose time is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.client_side.failure import Failed
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.mutants.engine import CallerLeavingIsNotTold
from enginewire.conformance.client_side.reference.backend import (
    CONTEXT,
    EngineCall,
    ReferenceBackend,
    Request,
)


@client_mutant("only_accepted_requests_are_aborted", kills="CLI-12/before-acceptance")
class OnlyAcceptedRequestsAreAborted(CallerLeavingIsNotTold):
    def leave(self, call: EngineCall, request: Request) -> None:
        if request.is_accepted:
            call.cancel()


@client_mutant("only_first_attempts_are_aborted", kills="CLI-12/continued")
class OnlyFirstAttemptsAreAborted(CallerLeavingIsNotTold):
    def leave(self, call: EngineCall, request: Request) -> None:
        if request.attempt == 1:
            call.cancel()


@client_mutant("waits_for_nobody", kills="CLI-12/waiting")
class WaitsForNobody(ReferenceBackend):
    """Its answers are made in tasks of their own, which hear nothing while they wait."""

    def __init__(self, engine: str) -> None:
        super().__init__(engine)
        self._waiting: set[Request] = set()
        self._making: set[asyncio.Task[None]] = set()

    async def pause(self, failure: Failed, request: Request) -> None:
        self._waiting.add(request)
        await super().pause(failure, request)
        self._waiting.discard(request)

    async def answer(
        self, asked: pb.BackendServiceGenerateRequest, request: Request, context: CONTEXT
    ) -> AsyncIterator[pb.Annotated]:
        made = asyncio.Queue[pb.Annotated | Failed | None]()
        items = super().answer(asked, request, context)

        async def make() -> None:
            try:
                async for item in items:
                    made.put_nowait(item)
                made.put_nowait(None)
            except Failed as failure:
                made.put_nowait(failure)

        making = asyncio.ensure_future(make())
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            while (item := await made.get()) is not None:
                if isinstance(item, Failed):
                    raise item
                yield item
        finally:
            if request not in self._waiting:
                making.cancel()


@client_mutant("no_time_left_is_no_limit", kills=("CLI-12/waiting", "CLI-32/spent"))
class NoTimeLeftIsNoLimit(WaitsForNobody):
    def seconds_left(self, context: CONTEXT) -> float | None:
        return super().seconds_left(context) or None
