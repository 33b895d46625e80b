"""The engines of examples/ say which contract they were written for; a change of it has to reach them."""

from __future__ import annotations

import re

import pytest

from enginewire import v1 as pb
from tests.repository import ROOT

EXAMPLES = ROOT / "examples"

# Where each of them keeps its digest, and its revision.
DIGESTS = ("typescript/src/service.ts", "cpp/src/service.h", "go/service.go", "rust/src/service.rs")
REVISIONS = ("typescript/src/rules.ts", "cpp/src/rules.h", "go/rules.go", "rust/src/rules.rs")


@pytest.mark.parametrize("path", DIGESTS)
def test_an_example_reports_the_digest_of_the_contract(path: str) -> None:
    (digest,) = re.findall(r'"([0-9a-f]{64})"', (EXAMPLES / path).read_text())
    assert digest == pb.schema_digest()


@pytest.mark.parametrize("path", REVISIONS)
def test_an_example_reports_the_revision_of_the_contract(path: str) -> None:
    code = (EXAMPLES / path).read_text()
    (revision,) = re.findall(r"\b(?:revision|REVISION|kRevision)(?:: u32)?\s*= (\d+)", code)
    assert int(revision) == pb.CONTRACT_REVISION
