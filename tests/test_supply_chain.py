"""The lock with hashes is that of the packages which pyproject.toml asks for, in the versions of CI."""

from __future__ import annotations

import re
import tomllib

from tests.repository import ROOT

EXTRAS = ("server", "metrics", "otel", "zmq", "backend", "http", "top", "chat", "bench")
"""As in .ci/make_hashes."""
LOCK = (ROOT / ".ci/hashes.txt").read_text()
LOCKED = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+) .*\\$", LOCK, re.MULTILINE))
CONSTRAINED = dict(
    re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / ".ci/constraints.txt").read_text(), re.MULTILINE)
)


def test_every_locked_file_has_a_hash_and_no_address() -> None:
    entries = re.split(r"^(?=[a-z0-9-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) == len(LOCKED) > 40
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    assert "://" not in LOCK


def test_locked_versions_are_those_of_ci() -> None:
    both = LOCKED.keys() & CONSTRAINED.keys()
    assert {"grpcio", "protobuf", "tokenizers"} <= both
    assert {name: LOCKED[name] for name in both} == {name: CONSTRAINED[name] for name in both}


def test_whatever_an_extra_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(each for extra in EXTRAS for each in project["optional-dependencies"][extra]),
    ]
    names = {re.match(r"[A-Za-z0-9-]+", each)[0].lower() for each in asked}  # type: ignore[index]  # each has a name
    assert names - {"enginewire"} <= LOCKED.keys()
    script = (ROOT / ".ci/make_hashes").read_text()
    assert re.search(r"for extra in (.*?);", script)[1].split() == list(EXTRAS)  # type: ignore[index]  # it is there
