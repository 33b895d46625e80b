"""A list of engines that somebody else writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from enginewire.backend.config import BackendOptions
from enginewire.backend.engines.discovery.address import Address, InvalidTargets
from enginewire.backend.engines.discovery.target_file import MAX_BYTES, TargetFile
from enginewire.options import OptionError

LINES = "# ours\n10.0.0.7:50051\n\n  [::1]:50051  # here\nunix:/run/e.sock\n10.0.0.7:50051\n"
GROUPS = [
    {"targets": ["10.0.0.7:50051", "[::1]:50051"], "labels": {"zone": "a"}},
    {"targets": ["unix:/run/e.sock"]},
]
WANTED = ("10.0.0.7:50051", "[::1]:50051", "unix:/run/e.sock")


def replace(path: Path, text: str) -> None:
    """As programs do that nobody shall see half of the text of."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


async def names(file: TargetFile) -> tuple[str, ...]:
    found = await file.look()
    assert found is not None
    return tuple(address.target for address in found)


@pytest.mark.parametrize("scheme", ["file:", "file://"])
@pytest.mark.parametrize(("suffix", "text"), [("txt", LINES), ("json", json.dumps(GROUPS))])
async def test_lines_and_groups_name_engines_each_once(
    tmp_path: Path, scheme: str, suffix: str, text: str
) -> None:
    path = tmp_path / f"engines.{suffix}"
    path.write_text(text)
    assert await names(TargetFile(f"{scheme}{path}")) == WANTED


async def test_what_replaces_the_list_counts_and_what_cannot_be_used_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "engines.txt"
    path.write_text("a:1\n")
    file = TargetFile(f"file:{path}")
    assert await file.look() == (Address("a:1"),)
    replace(path, "a:1\nb:2\n")
    assert await names(file) == ("a:1", "b:2")
    for text in ("b:2\nc\n", ""):
        replace(path, text)
        assert await names(file) == ("a:1", "b:2")
    path.unlink()
    assert await names(file) == ("a:1", "b:2")
    assert [f"{path}: {fault}" in caplog.text for fault in ("line 2: 'c' is not", "names no", "no such")] == [
        True
    ] * 3


async def test_json_may_say_that_there_is_no_engine(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    path.write_text("[]")
    assert await names(TargetFile(f"file:{path}")) == ()


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("e.txt", "a:1\na:65536", "line 2: 'a:65536' is not host:port, with a port of 1 to 65535"),
        ("e.txt", "a:0", "line 1"),
        ("e.txt", "dns:///a:1", "line 1: 'dns:///a:1' is not host:port"),
        ("e.txt", "a:1 b:2", "line 1"),
        ("e.txt", "unix:", "line 1: 'unix:' has no path"),
        ("e.txt", "#" * (MAX_BYTES + 1), "has more than"),
        ("e.json", "a:1", "is not JSON"),
        ("e.json", "[" * 100_000, "is not JSON"),
        ("e.json", "{}", "must be a list"),
        ("e.json", '[{"targets": "a:1"}]', "[0]: must be an object with a list of targets"),
        ("e.json", '[{"targets": [1]}]', "[0].targets[0]: must be a string"),
        ("e.json", '[{"targets": [], "target": []}]', "[0].target: is not known"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str, fault: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidTargets) as caught:
        TargetFile(f"file:{path}")
    assert str(caught.value).startswith(f"{path}: ")
    assert fault in str(caught.value)


def test_options_refuse_it_as_well(tmp_path: Path) -> None:
    for flag in ("target", "prefill_target"):
        with pytest.raises(OptionError) as caught:
            BackendOptions(**{flag: (f"file:{tmp_path}/nowhere",)})
        assert (
            str(caught.value) == f"--{flag.replace('_', '-')}: {tmp_path}/nowhere: no such file or directory"
        )
