"""The audit log: lines of JSON that survive rotation, and a disk that is full does not stop who writes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from enginewire.access import audit
from enginewire.access.audit import AuditLog


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_call_is_a_line_of_json_and_none_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.write_text("")
    log = AuditLog(str(path))
    log.call(who="", method="m", outcome="OK", seconds=1.23456789, request_id="a\nb\x1b", tokens=3, ttft=None)
    log.close()
    [line] = lines_of(path)
    assert line.pop("time")
    assert line == {
        "who": "anybody",
        "method": "m",
        "outcome": "OK",
        "request_id": "a\nb\x1b",
        "tokens": 3,
        "seconds": 1.234568,
    }


def test_a_new_file_belongs_to_its_owner_alone_and_an_old_one_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for number in range(2):
        log = AuditLog(str(path))
        log.call(who="a", method=str(number), outcome="OK", seconds=0)
        log.close()
    assert [line["method"] for line in lines_of(path)] == ["0", "1"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_lines_go_to_the_file_that_is_at_the_path_after_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "LOOK_SECONDS", 0.0)
    path, old = tmp_path / "audit", tmp_path / "audit.1"
    log = AuditLog(str(path))
    log.call(who="a", method="before", outcome="OK", seconds=0)
    _wait(log, 1)
    path.rename(old)
    log.call(who="a", method="after", outcome="OK", seconds=0)
    log.close()
    assert [line["method"] for line in lines_of(old)] == ["before"]
    assert [line["method"] for line in lines_of(path)] == ["after"]


def test_a_full_disk_is_complained_of_once_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog("/dev/full")
    for number in range(50):
        log.call(who="a", method=str(number), outcome="OK", seconds=0)
    log.close()
    assert (log.num_written, log.num_lost) == (0, 50)
    assert caplog.text.count("no space left") + caplog.text.count("No space left") == 1


def test_a_disk_that_hangs_costs_lines_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_WAITING", 5)
    held = threading.Event()
    monkeypatch.setattr(audit, "_write_whole", lambda file, line: held.wait())
    log = AuditLog(str(tmp_path / "audit"))
    for number in range(50):
        log.call(who="a", method=str(number), outcome="OK", seconds=0)
    assert log.num_lost >= 44
    held.set()
    log.close()


def _wait(log: AuditLog, number: int) -> None:
    while log.num_written < number:
        pass
