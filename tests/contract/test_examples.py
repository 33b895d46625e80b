"""The engines of examples/ say which contract they were written for; a change of it has to reach them."""

from __future__ import annotations

import re

import pytest

from enginewire import v1 as pb
from tests.repository import ROOT

EXAMPLES = ROOT / "examples"

# Where each of them keeps its digest, and its revision.
DIGESTS = (
    "typescript/src/service.ts",
    "cpp/enginewire/info.h",
    "go/enginewire/info.go",
    "rust/src/service.rs",
    "minimal-typescript/engine.ts",
)
REVISIONS = (
    "typescript/src/rules.ts",
    "cpp/enginewire/info.h",
    "go/enginewire/info.go",
    "rust/src/rules.rs",
)


# The minimal engines, and how many lines of code each may have.
MINIMAL = {
    "minimal-cpp/engine.cpp": 150,
    "minimal-go/engine.go": 150,
    "minimal-python/engine.py": 150,
    "minimal-typescript/engine.ts": 150,
}
NO_CODE = re.compile(r'\s*(#.*|//.*|""".*"""|/\*\*.*\*/)?')
LONGEST_LINE = 120


@pytest.mark.parametrize("path", DIGESTS)
def test_an_example_reports_the_digest_of_the_contract(path: str) -> None:
    (digest,) = re.findall(r'"([0-9a-f]{64})"', (EXAMPLES / path).read_text())
    assert digest == pb.schema_digest()


@pytest.mark.parametrize("path", REVISIONS)
def test_an_example_reports_the_revision_of_the_contract(path: str) -> None:
    code = (EXAMPLES / path).read_text()
    (revision,) = re.findall(r"\b(?:revision|REVISION|kRevision)(?:: u32)?\s*= (\d+)", code)
    assert int(revision) == pb.CONTRACT_REVISION


@pytest.mark.parametrize(("path", "most"), MINIMAL.items())
def test_a_minimal_engine_is_one_small_file(path: str, most: int) -> None:
    file = EXAMPLES / path
    lines = file.read_text().splitlines()
    assert len([line for line in lines if not NO_CODE.fullmatch(line)]) <= most
    assert max(map(len, lines)) <= LONGEST_LINE
    assert [other.name for other in file.parent.glob(f"*{file.suffix}")] == [file.name]


def test_every_minimal_engine_is_counted() -> None:
    assert {folder.name for folder in EXAMPLES.glob("minimal-*")} == {
        path.partition("/")[0] for path in MINIMAL
    }
