"""The line of statistics: rates since the last one, and silence while nothing happens."""

from __future__ import annotations

import asyncio
import logging

import pytest

from enginewire.metrics import stats_line
from enginewire.metrics.stats_line import Seen, StatsLine


class Stats(StatsLine):
    """Lines on a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)

    def after(self, seconds: float, **seen: float) -> str:
        self.now += seconds
        return self.line(Seen(**seen))  # type: ignore[arg-type]  # whole numbers but for one


def test_rates_are_those_since_the_last_line() -> None:
    stats = Stats()
    assert stats.after(
        10, prompt_tokens=200, cached_tokens=50, generated_tokens=50, running=2, waiting=1, kv_use=0.125
    ) == (
        "prompts 20.0 tokens/s, answers 5.0 tokens/s, 2 running, 1 waiting, KV cache 12.5%,"
        " prefix cache hits 25.0%"
    )
    assert stats.after(20, prompt_tokens=200, cached_tokens=50, generated_tokens=90, running=1, failed=3) == (
        "prompts 0.0 tokens/s, answers 2.0 tokens/s, 1 running, 0 waiting, prefix cache hits 0.0%, 3 failed"
    )
    assert stats.after(
        10, prompt_tokens=200, cached_tokens=50, generated_tokens=90, running=1, failed=5
    ).endswith("2 failed")
    line = stats.after(10, prompt_tokens=300, cached_tokens=70, generated_tokens=90, failed=5)
    assert line.endswith("prefix cache hits 20.0%, 0 failed")


def test_it_says_nothing_while_nothing_happens() -> None:
    stats = Stats()
    assert stats.after(10) == ""
    assert stats.after(10, generated_tokens=3) != ""
    assert stats.after(10, generated_tokens=3) == ""
    assert stats.after(10, generated_tokens=3, prompt_tokens=5) != ""
    assert stats.after(10, generated_tokens=3, prompt_tokens=5, failed=1) != ""
    assert stats.after(10, generated_tokens=3, prompt_tokens=5, failed=1) == ""
    assert stats.after(10, generated_tokens=3, prompt_tokens=5, failed=1, waiting=1) != ""


async def test_lines_come_until_the_server_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stats_line, "SECONDS", 0.001)
    caplog.set_level(logging.INFO)
    looks = iter([Seen(running=1), Seen(), Seen(running=2)])
    task = asyncio.ensure_future(StatsLine().log_for_ever(logging.getLogger("one"), lambda: next(looks)))
    with pytest.raises(RuntimeError):  # what becomes of the end of the looks
        await task
    assert [record.message.split(", ")[2] for record in caplog.records] == ["1 running", "2 running"]
