"""What callers ask for and get while cables go bad, and how long they wait."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc

from enginewire import v1 as pb
from tests.chaos.rehearsal.servers import until
from tests.end_to_end.chaos.stage import kinds_of_requests

NUM_TOKENS: Final = 400


@dataclass
class Answer:
    """What one caller got, and when each piece came, in seconds of time.monotonic."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, int] = field(default_factory=dict)
    is_gapless: bool = True
    num_migrations: int = 0
    error: pb.Status | None = None
    times: list[float] = field(default_factory=list)

    def take(self, item: pb.Annotated) -> None:
        """The next one."""
        self.num_migrations += item.event == "migrated"
        if item.HasField("error"):
            self.error = item.error
        if not item.HasField("data"):
            return
        data, tokens = item.data, self.tokens.setdefault(item.data.index, [])
        self.is_gapless &= not data.token_ids or data.first_output_position == len(tokens)
        tokens.extend(data.token_ids)
        self.text[data.index] = self.text.get(data.index, "") + data.text
        if data.finish_reason:
            self.finishes[data.index] = data.finish_reason
        self.times.append(time.monotonic())

    def said(self) -> tuple[object, ...]:
        """What must not depend on any cable."""
        return self.tokens, self.text, self.finishes, self.is_gapless, self.error

    def longest_wait(self, since: float) -> float:
        """Seconds without a piece, of those that ended after `since`."""
        times = [since, *(each for each in self.times if each > since)]
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


async def ask(to: grpc.aio.Channel, request: pb.PreprocessedRequest, answer: Answer) -> Answer:
    """All of it, into `answer` as it comes."""
    call = pb.BackendServiceStub(to).Generate(
        pb.BackendServiceGenerateRequest(token_ids=True, request=request)
    )
    async for response in call:
        answer.take(response.annotated)
    return answer


def requests(num_tokens: int = NUM_TOKENS) -> list[pb.PreprocessedRequest]:
    """Those of the eight callers."""
    return list(kinds_of_requests(b"over a cable", num_tokens))


async def ask_all(to: grpc.aio.Channel, answers: Sequence[Answer]) -> asyncio.Future[list[Answer]]:
    """Return once every caller has something."""
    asking = asyncio.gather(*(ask(to, *each) for each in zip(requests(), answers, strict=True)))

    async def all_have_begun() -> bool:
        return all(answer.times for answer in answers)

    assert await until(all_have_begun)
    return asking
