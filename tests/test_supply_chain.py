"""The lock with hashes is that of the packages which pyproject.toml asks for, in the versions of CI."""

from __future__ import annotations

import re
import tomllib

import pytest
from google.protobuf.descriptor import Descriptor

from enginewire import v1 as pb
from tests.repository import ROOT

EXTRAS = ("server", "metrics", "otel", "zmq", "backend", "http", "top", "chat", "bench")
"""As in .ci/make/hashes."""
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
    script = (ROOT / ".ci/make/hashes").read_text()
    assert re.search(r"for extra in (.*?);", script)[1].split() == list(EXTRAS)  # type: ignore[index]  # it is there


@pytest.mark.parametrize(("name", "least"), [("grpcio", "1.66"), ("protobuf", "6.33.5"), ("torch", "2.10")])
def test_ci_runs_what_has_the_known_fixes(name: str, least: str) -> None:
    given = CONSTRAINED[name]
    assert [*map(int, given.split("."))] >= [*map(int, least.split("."))], given


@pytest.mark.parametrize("message", [pb.ChatPrompt, pb.PreprocessedRequest])
def test_no_message_that_is_read_from_json_can_hold_any_other(message: type[pb.ChatPrompt]) -> None:
    """So an older protobuf, which follows `Any` in `Any` as deep as it goes, is no danger."""
    assert "google.protobuf.Any" not in names_within(message.DESCRIPTOR)
    assert "google.protobuf.Any" in names_within(pb.Status.DESCRIPTOR)


def names_within(descriptor: Descriptor) -> set[str]:
    """Of a message and of all that it may hold."""
    found, left = set(), [descriptor]
    while left:
        each = left.pop()
        if each.full_name not in found:
            found.add(each.full_name)
            left += [field.message_type for field in each.fields if field.message_type]
    return found
