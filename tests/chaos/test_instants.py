"""Programs that get signals at any instant leave nothing behind, and their judge sees what they leave."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.callers import CUT, TOLD, WHOLE, Call
from tests.chaos.instants import LONG_DRAIN, Life, run
from tests.long import long

TERM, INT = signal.SIGTERM, signal.SIGINT


@long
@pytest.mark.parametrize("program", ["engine", "backend"])
async def test_a_signal_at_any_instant_leaves_nothing(program: str) -> None:
    found = await run(program, 12, 1)
    assert found["instants"] == 12
    assert found["findings"] == {}


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """One that served, was told once, and ended well."""
    return Life([sys.executable], tmp_path, LONG_DRAIN, (), 1, signals=[(1.0, TERM, True)], ended=1.5)


def leave_a_socket(life: Life) -> None:
    (life.folder / "b").touch()


def say_a_traceback(life: Life) -> None:
    life.said += b"Traceback (most recent call last)"


def cut(life: Life) -> None:
    life.diary.calls.append(Call(began=0.5, end=CUT))


def do_not_wait(life: Life) -> None:
    life.diary.calls.append(Call(began=0.5, end=TOLD))


def never_end_a_call(life: Life) -> None:
    life.diary.calls.append(Call())


def fail(life: Life) -> None:
    life.code = 1


def be_ended_by_the_signals_own_action(life: Life) -> None:
    life.code = -TERM


@pytest.mark.parametrize(
    "fault",
    [
        leave_a_socket,
        say_a_traceback,
        cut,
        do_not_wait,
        never_end_a_call,
        fail,
        be_ended_by_the_signals_own_action,
    ],
)
def test_whatever_is_wrong_is_found(life: Life, fault: Callable[[Life], None]) -> None:
    assert life.findings() == []
    fault(life)
    assert life.findings()


def test_what_began_late_or_goes_on_for_ever_need_not_end_whole(life: Life) -> None:
    life.diary.calls += [
        Call(began=0.5, end=WHOLE),
        Call(began=2.0, end=TOLD),
        Call(True, 0.5, TOLD),
        Call(end=TOLD),
    ]
    assert life.findings() == []


@pytest.mark.parametrize("second", [TERM, INT])
def test_a_second_signal_may_end_it_with_its_number_and_at_last_where_it_is(
    life: Life, second: signal.Signals
) -> None:
    life.signals.append((1.2, second, True))
    life.code = 128 + second
    leave_a_socket(life)
    assert life.findings()
    life.ended = 4.0
    assert life.findings() == []


def test_ctrl_c_before_our_first_line_is_pythons_own(life: Life) -> None:
    life.signals, life.code = [(1.0, INT, False)], 1
    life.said += b'Traceback (most recent call last)\n  File "<frozen runpy>", line 1\nKeyboardInterrupt'
    assert life.findings() == []
    life.signals.append((1.1, TERM, False))
    life.code = -TERM
    assert life.findings() == []
    life.said += b'\n  File "/x/enginewire/backend/config.py", line 1'
    life.code = 1
    assert life.findings()
