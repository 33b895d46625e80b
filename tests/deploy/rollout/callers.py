"""Callers of a Service, and the Service: each connection goes to one pod, and stays there.

Knows nothing about pods.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

from tests.chaos.link import Link
from tests.deploy.asking import ask, question, told_tokens
from tests.patience import PATIENCE_SECONDS

NUM_CALLERS: Final = 8
NUM_TOKENS: Final = 40


class Service(Link):
    """As kube-proxy does it: a connection stays where it is, whatever becomes of the list of `endpoints`."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.endpoints: list[str] = []
        self._dice = dice

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """See Link."""
        if not self.endpoints:
            raise ConnectionRefusedError("no pod is ready")
        self.upstream = self._dice.choice(self.endpoints)
        return await super().connect()


@asynccontextmanager
async def callers(address: str) -> AsyncIterator[Counter[str]]:
    """What became of the requests of callers that ask again and again until the end.

    `whole`, or `lost` with what was said in its place, and `sent`, which counts those that were sent again.
    """
    counts, leaving = Counter[str](), asyncio.Event()

    async def count(_: object) -> None:
        counts["sent"] += 1

    http = DefaultAsyncHttpxClient(event_hooks={"request": [count]})
    async with (
        AsyncOpenAI(
            api_key="none", base_url=f"http://{address}/v1", timeout=PATIENCE_SECONDS, http_client=http
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        for number in range(NUM_CALLERS):
            group.create_task(_ask_until(leaving, client, counts, is_streamed=number % 2 == 0))
        yield counts
        leaving.set()


async def _ask_until(
    leaving: asyncio.Event, client: AsyncOpenAI, counts: Counter[str], *, is_streamed: bool
) -> None:
    while not leaving.is_set():
        try:
            num_tokens = await answered(client, NUM_TOKENS, is_streamed=is_streamed)
        except OpenAIError as error:
            counts[f"lost: {error}"] += 1
        else:
            counts["whole" if num_tokens == NUM_TOKENS else f"lost: {num_tokens} tokens"] += 1


async def answered(client: AsyncOpenAI, num_tokens: int, *, is_streamed: bool) -> int:
    """How many tokens the answer had, of so many that were asked for. Raises OpenAIError."""
    if is_streamed:
        return sum(await told_tokens(await ask(client, num_tokens)))
    answer = await client.chat.completions.create(**question(num_tokens))
    return answer.usage.completion_tokens
