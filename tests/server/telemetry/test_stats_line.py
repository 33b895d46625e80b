"""The line of statistics: rates since the last one, and silence while nothing happens."""

from __future__ import annotations

import asyncio
import logging

import pytest

from enginewire import v1 as pb
from enginewire.server.telemetry import stats_line
from enginewire.server.telemetry.stats_line import StatsLine


class Stats(StatsLine):
    """Lines on a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)

    def end(self, prompt: int, cached: int) -> None:
        usage = pb.CompletionUsage(prompt_tokens=prompt)
        usage.prompt_tokens_details.cached_tokens = cached
        self.ended(None, usage, None)

    def after(self, seconds: float, **load: int) -> str:
        self.now += seconds
        return self.line(pb.Load(**load))


def test_rates_are_those_since_the_last_line() -> None:
    stats = Stats()
    stats.end(100, 50)
    stats.end(100, 0)
    assert stats.after(
        10, tokens_generated=50, running=2, waiting=1, kv_blocks_used=1, kv_blocks_total=8
    ) == (
        "prompts 20.0 tokens/s, answers 5.0 tokens/s, 2 running, 1 waiting, KV cache 12.5%,"
        " prefix cache hits 25.0%"
    )
    assert stats.after(20, tokens_generated=90, running=1).startswith(
        "prompts 0.0 tokens/s, answers 2.0 tokens/s, 1 running, 0 waiting, KV cache 0.0%,"
        " prefix cache hits 0.0%"
    )


def test_it_says_nothing_while_nothing_happens() -> None:
    stats = Stats()
    assert stats.after(10) == ""
    assert stats.after(10, tokens_generated=3) != ""
    assert stats.after(10, tokens_generated=3) == ""
    stats.end(5, 0)
    assert stats.after(10, tokens_generated=3) != ""
    assert stats.after(10, tokens_generated=3, waiting=1) != ""


async def test_lines_come_until_the_server_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stats_line, "SECONDS", 0.001)
    caplog.set_level(logging.INFO)
    loads = iter([pb.Load(running=1), pb.Load(), pb.Load(running=2)])
    task = asyncio.ensure_future(StatsLine().log_for_ever(lambda: next(loads)))
    with pytest.raises(RuntimeError):  # what becomes of the end of the loads
        await task
    assert [record.message.split(", ")[2] for record in caplog.records] == ["1 running", "2 running"]
