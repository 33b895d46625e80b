"""What the router of Dynamo makes of the events of prefix caches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backend.frontends.dynamo.live.conftest import Deployment, complete, deployed, text_of
from tests.backend.our_processes import until

ROUNDS = 6
PROMPTS = ["one two three four five six seven " * 12, "north south east west up down " * 12]


@pytest.fixture
def routed() -> Iterator[Deployment]:
    with deployed("--router-mode", "kv") as made:
        yield made


def test_a_prompt_goes_where_its_beginning_is_cached(routed: Deployment) -> None:
    engines = routed.engine(), routed.engine()
    for engine in engines:
        routed.worker(engine, "--kv-routing", "--allow-insecure")

    def finished() -> list[int]:
        return [engine.load().requests_finished for engine in engines]

    for prompt in PROMPTS:
        text_of(complete(routed.url, prompt=prompt, max_tokens=2))
        until(lambda: all(engine.load().running == 0 for engine in engines))
        before = finished()
        cached = [
            complete(routed.url, prompt=prompt, max_tokens=2).json()["usage"]["prompt_tokens_details"][
                "cached_tokens"
            ]
            for _ in range(ROUNDS)
        ]
        assert sorted(now - then for now, then in zip(finished(), before, strict=True)) == [0, ROUNDS]
        assert min(cached) > 0
