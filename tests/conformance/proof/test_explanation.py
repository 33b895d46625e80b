from __future__ import annotations

import json

import pytest

from enginewire.conformance.proof.explanation import explain
from enginewire.conformance.requirements.requirement import requirements


def test_a_refusal_is_explained_by_the_request_that_gets_it() -> None:
    lines = explain(requirements()["LIM-04"]).splitlines()
    assert lines[0] == "LIM-04  MUST, level 1 (streams), profile core"
    assert "docs/contract.md#limits" in lines[2]
    (request,) = [json.loads(line) for line in lines if line.startswith('  {"')]
    assert request["request"]["stop_conditions"]["max_tokens"] == 0
    assert any(line.strip().startswith("INVALID_ARGUMENT") for line in lines)
    assert any('field: "stop_conditions.max_tokens"' in line for line in lines)
    assert lines[-1] == "  max0 unbounded"


def test_a_long_answer_is_shortened() -> None:
    text = explain(requirements()["STR-02"])
    assert " more …\n" in text
    assert text.count("first_output_position") < 5


def test_what_has_a_docstring_says_why_it_is_broken() -> None:
    text = explain(requirements()["MDT-07"])
    assert "\n  large metadata loses data: Its library lets everything through." in text


@pytest.mark.parametrize(
    ("identifier", "of_level"), [("CLI-06", "of no level"), ("HLT-06", "level 2 (operable)")]
)
def test_what_has_no_example_is_explained_without(identifier: str, of_level: str) -> None:
    text = explain(requirements()[identifier])
    assert of_level in text
    assert "right answer" not in text
