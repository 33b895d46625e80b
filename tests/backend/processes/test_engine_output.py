from __future__ import annotations

import asyncio
import io
import json

import pytest

from enginewire.backend.processes.engine_output import EngineOutput, wants_log_lines
from tests.patience import PATIENCE_SECONDS


class Screen(io.StringIO):
    """A terminal that keeps everything."""

    def __init__(self, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        """What is left of each line, as a person sees it."""
        return "\n".join(line.rpartition("\x1b[2K")[2] for line in self.getvalue().split("\n"))


def line(event: str, level: str = "info", **fields: str) -> str:
    return json.dumps({"event": event, "level": level, **fields}) + "\n"


LOADING = line("import 0 %") + line("device: cpu, float32") + line("load 50 %") + line("warm-up 100 %")


@pytest.fixture(autouse=True)
def no_variables(clean_environment: None) -> None:
    """Nobody asks for lines by the environment."""


async def test_a_terminal_gets_one_bar_and_no_line_of_the_log() -> None:
    screen = Screen()
    output = EngineOutput(screen)
    assert output.log_options == ("--log-format", "json")
    async with output.shown():
        for piece in (LOADING[:40], LOADING[40:100], LOADING[100:]):
            output.show(piece)
        assert "load, " in screen.getvalue()
        assert "\n" not in screen.getvalue()
        assert screen.text.startswith("loading ━━━━━━━━━━━━━━━━━━━━━━━━ 100%  warm-up")
        output.show(line("ready: m, 4 KV blocks, unix:/x"))
        assert screen.text == ""
        output.show(line("draining") + line("load 10 %"))
    assert screen.text == ""
    assert output.device == "cpu, float32"


async def test_warnings_wait_for_the_end_of_the_bar_and_come_at_once_behind_it() -> None:
    screen = Screen()
    output = EngineOutput(screen)
    async with output.shown():
        kept = output.show(line("slow\x1b[2J", "warning") + "no log line\n" + line("load 10 %"))
        assert kept == "slow\\x1b[2J\nno log line\nload 10 %\n"
        assert "slow" not in screen.getvalue()
        output.loaded()
        assert screen.text == "slow\\x1b[2J\nno log line\n"
        output.show(line("worse", "error", exception="Traceback:\n  here"))
        assert screen.text.endswith("worse\nTraceback:\n  here\n")


async def test_the_bar_moves_while_nothing_comes_and_leaves_with_the_engine() -> None:
    screen = Screen()
    output = EngineOutput(screen)
    for _ in range(2):
        async with output.shown(), asyncio.timeout(PATIENCE_SECONDS):
            before = len(screen.getvalue())
            while len(screen.getvalue()) == before:  # noqa: ASYNC110  # there is no event to await
                await asyncio.sleep(0.01)
        assert screen.text == ""


async def test_elsewhere_every_line_is_passed_on_as_it_is() -> None:
    out = Screen(is_terminal=False)
    output = EngineOutput(out)
    assert output.log_options == ()
    async with output.shown():
        assert output.show(LOADING) == "import 0 %\ndevice: cpu, float32\nload 50 %\nwarm-up 100 %\n"
    assert out.getvalue() == LOADING
    assert output.device == "cpu, float32"


def test_who_asks_for_log_lines_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["m", "--log-format", "json"], ["--log-level=debug"], ["--log-requests"]):
        screen = Screen()
        output = EngineOutput(screen, arguments)
        output.show(LOADING)
        assert screen.getvalue() == LOADING
        assert output.log_options == ("--log-format", "pretty")
    assert not wants_log_lines(["m", "--max-num-seqs", "4"])
    monkeypatch.setenv("ENGINEWIRE_LOG_FORMAT", "json")
    assert wants_log_lines([])
    assert EngineOutput(Screen()).log_options == ()


async def test_without_a_place_to_show_it_only_the_last_lines_are_kept() -> None:
    output = EngineOutput(None)
    async with output.shown():
        assert output.show(line("no such folder", "error")) == "no such folder\n"
        output.note("nobody reads this")
        output.loaded()
