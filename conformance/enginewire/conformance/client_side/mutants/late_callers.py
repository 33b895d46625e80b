"""Backends that go on while their caller reads nothing, and mix up what waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.backend import CONTEXT, ReferenceBackend, Request

MANY: Final = 8
"""Items that only wait where a caller reads late."""


class _ReadsAhead(ReferenceBackend):
    async def answer(
        self, asked: pb.BackendServiceGenerateRequest, request: Request, context: CONTEXT
    ) -> AsyncIterator[pb.Annotated]:
        waiting, items = asyncio.Queue[pb.Annotated](), super().answer(asked, request, context)

        async def read() -> None:
            async for item in items:
                waiting.put_nowait(item)

        reading = asyncio.ensure_future(read())
        try:
            while not (reading.done() and waiting.empty()):
                due = asyncio.ensure_future(waiting.get())
                await asyncio.wait((reading, due), return_when=asyncio.FIRST_COMPLETED)
                found = [due.result()] if due.done() else []
                due.cancel()
                found += [waiting.get_nowait() for _ in range(waiting.qsize())]
                has_much = asked.request.annotations and len(found) > MANY
                for item in self.gathered(found) if has_much else found:
                    yield item
            reading.result()
        finally:
            reading.cancel()

    def gathered(self, items: list[pb.Annotated]) -> list[pb.Annotated]:
        """What waited together, as the caller gets it."""
        return items


@client_mutant("events_overtake_what_waits", kills="EVT-05/late-caller")
class EventsOvertakeWhatWaits(_ReadsAhead):
    def gathered(self, items: list[pb.Annotated]) -> list[pb.Annotated]:
        return sorted(items, key=lambda item: item.HasField("data"))


@client_mutant("what_waits_is_joined_whoever_said_it", kills="CLI-22/late-caller")
class WhatWaitsIsJoinedWhoeverSaidIt(_ReadsAhead):
    """But for ends and log-probabilities."""

    def gathered(self, items: list[pb.Annotated]) -> list[pb.Annotated]:
        joined = items[:1]
        for item in items[1:]:
            last, data = joined[-1], item.data
            is_plain = item.HasField("data") and not data.finish_reason and not data.HasField("logprobs")
            if is_plain and last.HasField("data"):
                last.data.text += data.text
                last.data.token_ids.extend(data.token_ids)
            else:
                joined.append(item)
        return joined


@client_mutant("rows_of_what_waits_are_lost", kills="CLI-15/late-caller")
class RowsOfWhatWaitsAreLost(_ReadsAhead):
    def gathered(self, items: list[pb.Annotated]) -> list[pb.Annotated]:
        for item in items:
            if item.HasField("data"):
                item.data.ClearField("logprobs")
        return items
