"""Prompts come back to the engine that has them in its prefix cache."""

from __future__ import annotations

from pathlib import Path

from enginewire import v1 as pb
from tests.backend.asking import ask, hear
from tests.end_to_end.chaos.stage import engines, replaying
from tests.end_to_end.chaos.test_demo import DEMO, tokenizer_of
from tests.long import long

NUM_CONVERSATIONS = 4
NUM_TURNS = 3


def cached_tokens(usage: pb.CompletionUsage) -> int:
    return usage.prompt_tokens_details.cached_tokens


@long
async def test_every_conversation_stays_where_its_prompt_is_cached(folder: Path) -> None:
    async with engines(folder, 2, DEMO) as slots:
        targets = [slot.target for slot in slots]
        tokenizer = await tokenizer_of(targets[0])
        async with replaying(targets, tokenizer.vocabulary) as backend:
            for endpoint in backend.engines.all:
                await endpoint.client.wait_ready(60)
            first, other = backend.engines.all
            for conversation in range(NUM_CONVERSATIONS):
                prompt = tokenizer.encode(f"{conversation}, " + "and so on, and so on, " * 20)
                assert len(prompt) >= 64
                busy = first if conversation % 2 else other
                for turn in range(NUM_TURNS):
                    # Only the first turn is sent by load: half of the conversations to each engine.
                    busy.in_flight += turn == 0
                    heard = await hear(backend, ask(prompt, 4))
                    busy.in_flight -= turn == 0
                    assert heard.failure is None
                    usage = heard.outputs[-1].completion_usage
                    assert usage is not None
                    assert bool(cached_tokens(usage)) == bool(turn)
                    prompt += heard.token_ids()
            finished = [(await endpoint.client.load()).requests_finished for endpoint in backend.engines.all]
    assert finished == [NUM_CONVERSATIONS // 2 * NUM_TURNS] * 2
