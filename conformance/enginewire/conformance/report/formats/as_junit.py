"""The report as JUnit's XML, which CI servers read: classname is the profile, name the key of the check."""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

from enginewire.conformance.report.human import explained
from enginewire.conformance.report.text import visible
from enginewire.conformance.running.outcome import Outcome, Report, Status

SUITE: Final = "enginewire-conformance"
SKIPPED: Final = frozenset({Status.NOT_APPLICABLE, Status.BLOCKED, Status.NOT_RUN, Status.XFAIL})


def render(report: Report) -> str:
    """One test case per outcome."""
    cases = [_case(report, outcome) for outcome in report.outcomes]
    if report.no_verdict:
        cases.append(_without_verdict(report))
    facts = {"name": SUITE, "time": f"{report.seconds:.3f}", **_numbers(cases)}
    suite = ET.Element("testsuite", facts)
    _properties(suite, report)
    suite.extend(cases)
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _numbers(cases: list[ET.Element]) -> dict[str, str]:
    marks = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    numbers = {name: sum(case.find(tag) is not None for case in cases) for name, tag in marks.items()}
    return {"tests": str(len(cases))} | {name: str(number) for name, number in numbers.items()}


def _properties(suite: ET.Element, report: Report) -> None:
    properties = ET.SubElement(suite, "properties")
    for name, value in {"target": report.target, "engine": report.engine, "bounds": report.bounds}.items():
        ET.SubElement(properties, "property", name=name, value=visible(value))


def _case(report: Report, outcome: Outcome) -> ET.Element:
    profile, time = outcome.requirement.profile, f"{outcome.seconds:.3f}"
    case = ET.Element("testcase", classname=profile, name=outcome.key, time=time)
    message = visible(f"{outcome.status.value}: {outcome.message}")
    if outcome.status is Status.ERROR:
        ET.SubElement(case, "error", message=message, type="ERROR").text = _text(report, outcome)
    elif report.fails(outcome):
        kind = outcome.status.value
        ET.SubElement(case, "failure", message=message, type=kind).text = _text(report, outcome)
    elif outcome.status in SKIPPED:
        ET.SubElement(case, "skipped", message=message)
    elif outcome.status is not Status.PASS:
        ET.SubElement(case, "system-out").text = _text(report, outcome)
    return case


def _without_verdict(report: Report) -> ET.Element:
    """Skipped cases alone, or none, would look like a success."""
    case = ET.Element("testcase", classname="kit", name="there-is-a-verdict")
    message = visible(report.no_verdict)
    ET.SubElement(case, "error", message=message, type=report.exit_code().name)
    return case


def _text(report: Report, outcome: Outcome) -> str:
    return "\n".join(visible(line) for line in explained(report, outcome))
