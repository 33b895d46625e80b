from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.conformance.__main__ import main
from enginewire.conformance.mutants.options.limits import OneTooMany
from enginewire.conformance.proof import flakes
from enginewire.conformance.proof.flakes import SPEEDS, at_speed, busy, judge_once
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.reference.variants.handoffs import Decode
from enginewire.conformance.running.outcome import ExitCode
from tests.long import long


def test_a_reference_at_another_speed_is_else_the_same() -> None:
    slow = at_speed(Decode, 0.02)()
    assert (slow.settings.step_seconds, slow.settings.role) == (0.02, pb.ENGINE_ROLE_DECODE)
    assert Decode.settings.step_seconds == Settings().step_seconds


def test_there_are_five_speeds() -> None:
    assert len(set(SPEEDS)) == 5


@long
def test_every_reference_is_judged_and_none_is_unexpected() -> None:
    runs = judge_once(0.0, ["STR-01", "DIS-*", "CLI-01"])
    assert [run.evidence for run in runs] == [{}, {}, {}]
    assert [run.verdicts > 0 for run in runs] == [True, True, True]


def test_what_is_unexpected_is_shown_with_its_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flakes, "Reference", OneTooMany)
    server, _ = judge_once(0.0, ["LIM-01"])
    assert server.evidence.keys() == {"LIM-01", "LIM-01/drawn", "LIM-01/seen"}
    assert any("expected: 1" in line for line in server.evidence["LIM-01"])


@long
def test_a_run_without_flakes_is_conformant(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["self-test", "--flakes", "1", "--workers", "1", "--busy", "1", "--run", "STR-01,CLI-01"]
    assert main(asked) == ExitCode.CONFORMANT
    assert "0 of " in capsys.readouterr().out


def test_a_flake_ends_the_run_with_a_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pool:
        """Judges at once, in this process."""

        def __init__(self, *arguments: object, **options: object) -> None:
            """No process."""

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *raised: object) -> None:
            """Nothing to end."""

        def submit(self, function: object, speed: float, run: list[str]) -> Done:
            return Done(judge_once(speed, run))

    class Done:
        def __init__(self, runs: list[flakes.Run]) -> None:
            self.result = lambda: runs

    monkeypatch.setattr(flakes, "Reference", OneTooMany)
    monkeypatch.setattr(flakes, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(flakes, "as_completed", list)
    assert main(["self-test", "--flakes", "1", "--run", "LIM-01"]) == ExitCode.VIOLATION
    assert "unexpected in 1: LIM-01" in capsys.readouterr().out


def test_busy_processes_end_with_the_context() -> None:
    with busy(2) as others:
        assert [other.poll() for other in others] == [None, None]
    assert all(other.poll() is not None for other in others)
