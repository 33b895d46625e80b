"""Requests of every shape and end, one after the other: for whoever looks at what is told of them afterwards.

What is right for a request that is served may be wrong for one that is refused, aborted or late. Whether an
end itself is right is for others to judge.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.exchange import Metadata
from enginewire.conformance.wire.multiplexed import Multiplexed
from enginewire.conformance.wire.stream import Stream

Way = Callable[[Metadata], Awaitable[int]]
"""Has a request with this metadata come to its end; how many tokens were streamed for it."""

SERVED_TOKENS: Final = 2
LEFT_AFTER: Final = 3
"""Tokens, or as many more as come together."""
SHORT: Final = 0.02
"""Seconds that a request has which is to be late."""
NO_TOKEN: Final = 2**32 - 1

REFUSED: Final[tuple[dict[str, Value], ...]] = (
    {"max_tokens": 0},
    {"token_ids": [NO_TOKEN]},
    {"model": "no-such-model"},
)
"""One against the rule of a field, one with what this engine does not know, and one for somebody else."""


class Endings:
    """Asks one target, with `changes` in every request that generates."""

    def __init__(self, ctx: Context, stream: Multiplexed | None, changes: dict[str, Value]) -> None:
        self._ctx = ctx
        self._stream = stream
        self._changes = changes
        self._handles = count(1)

    def ways(self) -> dict[str, Way]:
        """By name, as far as the target has them. Those of handles share one stream."""
        return {**self.whole_ways(), **self.cut_ways()}

    def whole_ways(self) -> dict[str, Way]:
        """Those in which nothing but the request itself decides how it ends."""
        ways: dict[str, Way] = {"served": self.served, "refused": self.refused}
        if self._ctx.choices(2) > 1:
            ways["served with choices"] = self.served_with_choices
        if self._ctx.capabilities.embeddings:
            ways |= {"embedded": self.embedded, "refused to embed": self.refused_to_embed}
        if self._stream:
            ways |= {"submitted": self.submitted, "submitted and refused": self.submitted_and_refused}
        return ways

    def cut_ways(self) -> dict[str, Way]:
        """Those in which somebody ends a request that would go on."""
        ways: dict[str, Way] = {"aborted": self.aborted}
        if self._stream:
            ways["submitted and aborted"] = self.submitted_and_aborted
            ways["aborted as it was submitted"] = self.aborted_at_once
            ways["submitted and late"] = self.late
        return ways

    async def served(self, metadata: Metadata) -> int:
        """To its natural end."""
        return await self._called(self._small(), metadata)

    async def served_with_choices(self, metadata: Metadata) -> int:
        """Two of them."""
        return await self._called(self._small(n=2), metadata)

    async def refused(self, metadata: Metadata) -> int:
        """In each of a few ways."""
        return sum([await self._called(self._small(**wrong), metadata) for wrong in REFUSED])

    async def aborted(self, metadata: Metadata) -> int:
        """By its id, when it has some tokens. The abort has the metadata as well."""
        stream = self._ctx.start(self._long(), metadata=metadata)
        await stream.more(LEFT_AFTER)
        asked = pb.AbortRequest(request_ids=[stream.request.request_id])
        await self._ctx.client.ask("EngineService.Abort", asked, metadata=metadata)
        return _count(await stream.end())

    async def embedded(self, metadata: Metadata) -> int:
        """One input."""
        return await self._embed(metadata, self._ctx.prompt(4))

    async def refused_to_embed(self, metadata: Metadata) -> int:
        """One input that is none."""
        return await self._embed(metadata, [NO_TOKEN])

    async def submitted(self, metadata: Metadata) -> int:
        """A handle, to its natural end."""
        return await self._submitted(self._small(), metadata)

    async def submitted_and_refused(self, metadata: Metadata) -> int:
        """Handles, in the same ways as calls."""
        return sum([await self._submitted(self._small(**wrong), metadata) for wrong in REFUSED])

    async def submitted_and_aborted(self, metadata: Metadata) -> int:
        """A handle, when it has some tokens."""
        return await self._submitted(self._long(), metadata, left_after=LEFT_AFTER)

    async def aborted_at_once(self, metadata: Metadata) -> int:
        """A handle, by the frame that submits it: most engines have not begun with it."""
        return await self._submitted(self._long(), metadata, left_after=0)

    async def late(self, metadata: Metadata) -> int:
        """A handle whose time is over before its request is."""
        return await self._submitted(self._long(), metadata, timeout=SHORT)

    def _small(self, **changes: Value) -> pb.GenerateRequest:
        tokens: dict[str, Value] = {"max_tokens": self._ctx.tokens(SERVED_TOKENS)}
        return self._ctx.request(**{**tokens, **self._changes, **changes})

    def _long(self) -> pb.GenerateRequest:
        return self._ctx.long_request(**self._changes)

    async def _called(self, request: pb.GenerateRequest, metadata: Metadata) -> int:
        return _count(await self._ctx.start(request, metadata=metadata).end())

    async def _embed(self, metadata: Metadata, tokens: list[int]) -> int:
        request = pb.EmbedRequest(request_id=self._ctx.request().request_id)
        request.request.token_ids.add(token_ids=tokens)
        await self._ctx.client.ask("EmbeddingService.Embed", request, metadata=metadata)
        return 0

    async def _submitted(
        self,
        request: pb.GenerateRequest,
        metadata: Metadata,
        *,
        left_after: int | None = None,
        timeout: float | None = None,
    ) -> int:
        number, stream = next(self._handles), self._stream
        assert stream, "handles are no ways of a target without streams"
        submit = stream.submitted(number, request, timeout)
        submit.metadata.update({name: str(value) for name, value in metadata})
        stream.send(submit, abort=(number,) if left_after == 0 else ())
        await stream.until_ended(number, left={number: left_after} if left_after else None)
        return stream.handle(number).count


@asynccontextmanager
async def endings(ctx: Context, **changes: Value) -> AsyncIterator[Endings]:
    """Of one target; its stream, where it has that, is closed in the end."""
    if not ctx.capabilities.multiplexed:
        yield Endings(ctx, None, changes)
        return
    async with open_stream(ctx) as stream:
        yield Endings(ctx, stream, changes)


def _count(stream: Stream) -> int:
    """Tokens of all choices."""
    return sum(len(output.token_ids) for output in stream.outputs)
