from __future__ import annotations

import json
import re
import shlex
import types
from pathlib import Path

import pytest

from enginewire.conformance import options
from enginewire.conformance.conclusion.conclusion import FORMATS
from enginewire.conformance.proof import docs
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.report.formats import as_json
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running.outcome import ExitCode, Status
from enginewire.conformance.running.servers.in_process import InProcess
from tests.conformance.report.reports import outcome, report
from tests.long import long
from tests.repository import ROOT

PAGE = ROOT / "docs" / "conformance.md"

SUMMARY = {
    "checks": 4,
    "exact_kills": 1,
    "unkilled_checks": ["STR-99"],
    "alive": ["not_broken"],
    "adversary_passes": {"null": 0, "echo": 0},
    "seconds": 9.6,
    "kills": {"one_too_many": ["LIM-01"], "two_terminals": ["STR-02", "STR-03"], "not_broken": []},
    "expected": {"one_too_many": ["LIM-01"], "two_terminals": ["STR-02"], "not_broken": ["USE-01"]},
}


def test_the_page_has_the_requirements_as_they_are() -> None:
    page = PAGE.read_text()
    assert docs.filled(page) == page, "run python -m enginewire.conformance.proof.docs docs/conformance.md"


def test_every_requirement_has_a_row() -> None:
    rows = re.findall(r"^\| \[([A-Z]{3}-\d\d)\]\(contract\.md#", PAGE.read_text(), re.MULTILINE)
    assert rows == list(requirements())


def test_a_proof_counts_exact_kills_by_area() -> None:
    table = docs.proof_table(docs.read_proof(f"noise\n{json.dumps(SUMMARY)}\n"))
    assert table.startswith(
        "4 checks, 3 mutants, 1 of them exact kills; the servers that are no engine pass 0 checks"
    )
    assert "Checks that no mutant fails: STR-99." in table
    assert "Mutants that live: not_broken." in table
    for area, counts in {"LIM Limits": "1 | 1", "USE Usage": "1 | 0", "STR Stream": "1 | 0"}.items():
        number = sum(identifier.startswith(area[:3]) for identifier in requirements())
        assert f"| {area} | {number} | {counts} |" in table


def test_a_proof_says_how_many_of_the_second_order_were_killed_and_which_were_not() -> None:
    more = {
        "second_order_mutants": 3,
        "second_order_kills": 2,
        "second_order_survivors": ["total_wrong@resumed"],
    }
    table = docs.proof_table(docs.read_proof(json.dumps({**SUMMARY, **more})))
    assert "3 second-order mutants were drawn, 2 of them killed." in table
    assert "Of those live: `total_wrong@resumed`." in table
    assert "second-order" not in docs.proof_table(docs.read_proof(json.dumps(SUMMARY)))


def test_shards_are_one_proof() -> None:
    other = {
        **SUMMARY,
        "unkilled_checks": ["STR-98", "STR-99"],
        "alive": [],
        "kills": {"silent": ["USE-01"]},
        "expected": {"silent": ["USE-01"]},
    }
    whole = docs.joined([docs.read_proof(json.dumps(summary)) for summary in (SUMMARY, other)])
    table = docs.proof_table(whole)
    assert table.startswith("4 checks, 4 mutants, 2 of them exact kills")
    assert "Checks that no mutant fails: STR-99." in table
    assert "Mutants that live: not_broken." in table
    number = sum(identifier.startswith("USE") for identifier in requirements())
    assert f"| USE Usage | {number} | 2 | 1 |" in table


def test_a_mutant_in_two_shards_is_refused() -> None:
    with pytest.raises(ValueError, match="in more than one proof: one_too_many"):
        docs.joined([docs.read_proof(json.dumps(SUMMARY))] * 2)


def test_a_page_without_the_section_is_refused() -> None:
    with pytest.raises(ValueError, match="<!-- requirements -->"):
        docs.filled("# Nothing")


@pytest.mark.parametrize(
    "name", [*(f"`--{name} FILE`" for name in FORMATS), *(f"| {s.value} |" for s in Status)]
)
def test_the_page_speaks_of_every_report_and_status(name: str) -> None:
    assert name in PAGE.read_text()


def test_the_page_describes_every_field_of_the_json_report() -> None:
    document = json.loads(as_json.render(report(outcome(Status.FAIL, "STR-02", "boom"))))
    described = set(re.findall(r"`\.?(\w+)(?:\[\])?`", PAGE.read_text()))
    (found,) = document["outcomes"]
    (call,) = found["calls"]
    assert {*document, *found, *call, *call["messages"][0]} <= described


@long
async def test_the_example_of_the_page_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    server = await InProcess(Reference()).start()
    module = types.ModuleType("example")
    exec(code.replace("unix:/run/engine.sock", server.target), module.__dict__)
    await module.test_the_server_keeps_the_contract()
    await server.stop()


def test_the_page_says_the_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+(?:, \d+)*) \|", PAGE.read_text(), re.MULTILINE)
    assert [int(code) for row in rows for code in row.split(", ")] == sorted(ExitCode)


def test_the_commands_of_the_page_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(
        r"^\$ enginewire-conformance (.+)$", PAGE.read_text().replace("\\\n", " "), re.MULTILINE
    )
    assert len(commands) >= 7
    for command in commands:
        options.parse(shlex.split(command))
