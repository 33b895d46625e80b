"""One event per line, whatever is in it, and a log that cannot stop the server."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable

import pytest

from enginewire.program.logs import configure_logs

Log = Callable[..., list[str]]


@pytest.fixture
def log(monkeypatch, kept_logs) -> Log:
    """`log(style, message)` is the lines that logging the message writes."""

    def write(style: str, message: str, *, level: str = "info", **fields: object) -> list[str]:
        stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        configure_logs(level, style)
        logging.getLogger("engine").info(message, **fields)
        return stream.getvalue().splitlines()

    return write


def test_json_has_one_object_per_line_with_time_level_and_logger(log):
    [line] = log("json", "hello")
    event = json.loads(line)
    assert (event["event"], event["level"], event["logger"]) == ("hello", "info", "engine")
    assert event["timestamp"].endswith("Z")


@pytest.mark.parametrize("style", ["json", "pretty"])
def test_control_characters_of_a_caller_cannot_make_lines_or_colours(log, style):
    [line] = log(style, "id a\nb\x1b[31m\u2028\r\x00 end")
    assert r"a\nb\x1b[31m\u2028\r\x00 end" in line.replace(r"\u001b", r"\x1b").replace(r"\u0000", r"\x00")


def test_auto_is_json_where_there_is_no_terminal(log):
    [line] = log("auto", "hello")
    assert json.loads(line)["event"] == "hello"


def test_an_exception_is_part_of_its_line(log):
    try:
        raise ValueError("no")
    except ValueError as error:
        [line] = log("json", "failed", exc_info=error)
    assert "ValueError: no" in json.loads(line)["exception"]


@pytest.mark.parametrize("style", ["json", "pretty"])
def test_a_traceback_shows_code_and_no_values(log, style):
    def fail(prompt: str) -> None:
        raise ValueError(len(prompt))

    try:
        fail("".join(("sec", "ret")))
    except ValueError as error:
        text = "\n".join(log(style, "failed", exc_info=error))
    assert "raise ValueError(len(prompt))" in text
    assert "secret" not in text


def test_what_is_less_severe_than_the_level_is_not_written(log):
    assert log("json", "hello", level="error") == []


def test_a_broken_stderr_is_survived(log, monkeypatch):
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    log("json", "first")
    monkeypatch.setattr("sys.stderr", Full())
    configure_logs("info", "json")
    logging.getLogger("engine").info("second")
