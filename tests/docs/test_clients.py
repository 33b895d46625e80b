"""The table of clients in docs/http.md: what `make clients-test` installs, and the tests that it runs."""

from __future__ import annotations

import re

import pytest

from tests.repository import ROOT

ROW = re.compile(r"^\| \[`?(?P<package>[\w-]+)`?\]\(\.\./(?P<tests>\S+)\) \| (?P<versions>[\d., ]+) \|", re.M)
PIN = re.compile(r"^(?P<package>[\w-]+)(\[\w+\])?==(?P<version>\S+)$", re.M)
ROWS = [match.groupdict() for match in ROW.finditer((ROOT / "docs/http.md").read_text())]
FILES = sorted((ROOT / ".ci/clients").glob("*.txt"))
PINS = [match.group("package", "version") for file in FILES for match in PIN.finditer(file.read_text())]


def test_each_client_has_a_row_and_is_tried() -> None:
    tests = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/clients/test_*.py"))
    assert sorted(row["tests"] for row in ROWS) == tests
    script = (ROOT / ".ci/check/clients").read_text()
    tried = {word for line in re.findall(r"^try \S+ (.+)$", script, re.M) for word in line.split()}
    assert {f"tests/clients/test_{word}.py" for word in tried} == {*tests}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["package"])
def test_the_versions_of_a_row_are_those_that_are_installed(row: dict[str, str]) -> None:
    if row["package"] == "curl":  # the system's own
        return
    pinned = [version for package, version in PINS if package == row["package"]]
    named = row["versions"].split(", ")
    assert len(pinned) == len(named)
    assert all(any(f"{version}.".startswith(f"{name}.") for version in pinned) for name in named)
