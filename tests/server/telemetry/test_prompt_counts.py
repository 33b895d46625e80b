from __future__ import annotations

import asyncio
import logging

import pytest

from enginewire import v1 as pb
from enginewire.metrics import stats_line
from enginewire.metrics.stats_line import Seen
from enginewire.server.telemetry.prompt_counts import PromptCounts
from tests.server.serving import ask, until_true


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_server_that_works_says_so_unless_nobody_wants_that(
    engine_server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_wanted: bool
) -> None:
    monkeypatch.setattr(stats_line, "SECONDS", 0.001)
    caplog.set_level(logging.INFO)
    serving = await engine_server(disable_log_stats=not is_wanted)
    await serving.generate(ask(max_tokens=20))
    if is_wanted:
        await until_true(lambda: "answers " in caplog.text)
    logging_them = [task for task in asyncio.all_tasks() if task.get_name() == "statistics"]
    assert bool(logging_them) is is_wanted


def test_prompts_count_when_their_requests_have_ended() -> None:
    counts = PromptCounts()
    for cached in (50, 0):
        usage = pb.CompletionUsage(prompt_tokens=100)
        usage.prompt_tokens_details.cached_tokens = cached
        counts.ended(None, usage, None)  # type: ignore[arg-type]  # nobody looks at the request
    load = pb.Load(tokens_generated=7, running=2, waiting=1, kv_blocks_used=1, kv_blocks_total=8)
    assert counts.seen_with(load) == Seen(
        prompt_tokens=200, cached_tokens=50, generated_tokens=7, running=2, waiting=1, kv_use=0.125
    )
    assert counts.seen_with(pb.Load()).kv_use == 0
