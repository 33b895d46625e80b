"""A backend that serves logs as the engine server does: lines for programs, and one of statistics."""

from __future__ import annotations

import json
import logging

import pytest

from enginewire.backend.commands.life import configure
from enginewire.backend.config import ServeOptions


@pytest.fixture
def kept_logs():
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.raiseExceptions)
    yield
    root.handlers[:], root.level, logging.raiseExceptions = before


def test_lines_are_json_where_there_is_no_terminal(kept_logs, capsys: pytest.CaptureFixture[str]) -> None:
    configure(ServeOptions(target=("unix:/nowhere.sock",)))
    logging.getLogger("backend").info("hello\nthere")
    event = json.loads(capsys.readouterr().err)
    assert (event["event"], event["level"], event["logger"]) == ("hello\nthere", "info", "backend")
