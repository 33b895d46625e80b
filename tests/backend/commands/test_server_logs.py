"""A backend that serves logs as the engine server does: lines for programs, and one of statistics."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from enginewire.backend.commands.life import configure
from enginewire.backend.commands.serve import stats_logged
from enginewire.backend.config import ServeOptions
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.metrics import stats_line
from enginewire.metrics.stats_line import Seen
from tests.server.serving import until_true


def test_lines_are_json_where_there_is_no_terminal(kept_logs, capsys: pytest.CaptureFixture[str]) -> None:
    configure(ServeOptions(target=("unix:/nowhere.sock",)))
    logging.getLogger("backend").info("hello\nthere")
    event = json.loads(capsys.readouterr().err)
    assert (event["event"], event["level"], event["logger"]) == ("hello\nthere", "info", "backend")


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_backend_that_works_says_so_unless_nobody_wants_that(
    text_backend: TextBackend,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_wanted: bool,
) -> None:
    monkeypatch.setattr(stats_line, "SECONDS", 0.001)
    monkeypatch.setattr(text_backend.backend.activity, "seen", lambda: Seen(running=3))
    caplog.set_level(logging.INFO)
    before = asyncio.all_tasks()
    async with stats_logged(text_backend, ServeOptions(disable_log_stats=not is_wanted)):
        assert bool(asyncio.all_tasks() - before) is is_wanted
        if is_wanted:
            await until_true(lambda: "3 running" in caplog.text)
