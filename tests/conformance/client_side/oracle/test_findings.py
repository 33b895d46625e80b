from __future__ import annotations

import re

from enginewire.conformance.client_side.judge import judge
from enginewire.conformance.client_side.mutants.conditions_of_calls import UsageCountsThePromptOfEachChoice
from enginewire.conformance.client_side.mutants.conditions_of_text import VisibleStopTokenIsNotNamed
from enginewire.conformance.client_side.mutants.text import VisibleStopHidden
from enginewire.conformance.client_side.oracle.case import from_json
from enginewire.conformance.client_side.reference.backend import ReferenceBackend
from enginewire.conformance.client_side.reference.text import ReferenceChoice
from enginewire.conformance.client_side.run_options import RunOptions
from enginewire.conformance.client_side.stage.backends import InProcessStarter
from enginewire.conformance.running.outcome import Outcome, Report, Status
from enginewire.conformance.running.selection import Selection


class NamesNoVisibleToken(ReferenceBackend):
    choice_class: type[ReferenceChoice] = VisibleStopTokenIsNotNamed


class HidesVisibleStops(ReferenceBackend):
    choice_class: type[ReferenceChoice] = VisibleStopHidden


async def judged(backend: type[ReferenceBackend], *, run: str = "*/drawn", **given: object) -> Report:
    """By the drawn checks alone."""
    asked = RunOptions(**given)  # type: ignore[arg-type]  # its fields
    return await judge(InProcessStarter(backend), Selection(run=("CLI-01", run)), options=asked)


def case_of(failed: Outcome) -> str:
    """What the message says can be played again."""
    found = re.search(r"--case '(\{.*\})'", failed.message)
    assert found, failed.message
    return found[1]


async def test_a_correct_backend_has_no_findings() -> None:
    report = await judged(ReferenceBackend, seed=77, cases=60)
    assert [f"{each.key}: {each.message}" for each in report.unexpected] == []
    assert report.bounds.endswith("drawn cases: 60, seed 77")


async def test_a_failure_is_told_in_its_smallest_form_and_can_be_played_again() -> None:
    [failed] = (await judged(UsageCountsThePromptOfEachChoice, cases=20)).unexpected
    assert failed.key == "CLI-24/drawn"
    case = from_json(case_of(failed))
    assert (case.n, case.options.keys()) == (2, {"tokens", "ends", "messages"})
    assert {exchange.method.split()[0] for exchange in failed.exchanges} == {
        "BackendService.Generate",
        "EngineService.Generate",
    }
    [again] = (await judged(UsageCountsThePromptOfEachChoice, case=case_of(failed))).unexpected
    assert again.key == failed.key
    assert (await judged(ReferenceBackend, case=case_of(failed))).unexpected == []


async def test_a_case_by_hand_finds_what_it_is_made_for() -> None:
    case = """{"tokens": [["a", "Z"]], "ends": ["STOP"], "messages": [[0, 1], [0, 1]],
               "stop_token_ids_visible": ["Z"]}"""
    [failed] = (await judged(NamesNoVisibleToken, case=case)).unexpected
    assert (failed.key, failed.expected, failed.seen) == ("CLI-20/drawn", "90", "None")


async def test_where_a_simple_check_fails_nothing_is_drawn() -> None:
    report = await judged(HidesVisibleStops, run="CLI-04*")
    found = {
        each.key: (each.status, each.message) for each in report.outcomes if each.key.startswith("CLI-04")
    }
    assert found["CLI-04"][0] is Status.FAIL
    assert found["CLI-04/drawn"] == (Status.BLOCKED, "CLI-04 has to hold first")


async def test_without_cases_the_drawn_checks_say_nothing() -> None:
    report = await judged(ReferenceBackend, cases=0)
    assert {each.status for each in report.outcomes if each.key.endswith("/drawn")} == {Status.NOT_APPLICABLE}
