from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from enginewire.conformance import options
from enginewire.conformance.__main__ import main
from enginewire.conformance.mutants import Mutant
from enginewire.conformance.mutants.options.limits import OneTooMany
from enginewire.conformance.proof import self_test
from enginewire.conformance.proof.second_order import survey
from enginewire.conformance.proof.second_order.draw import Pair, Standing, named
from enginewire.conformance.proof.second_order.survey import Breadth, Sample, is_about, notice, sample, wanted
from enginewire.conformance.running.outcome import Report, Status
from enginewire.conformance.running.registry import Phase
from tests.conformance.report.reports import outcome, report
from tests.long import long

FIRST = Mutant("one_too_many", ("LIM-01",), OneTooMany, also=("USE-01/seen",))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        *[("LIM-01", True), ("LIM-01/seen", True), ("LIM-02/drawn", True), ("USE-01/seen", True)],
        *[("USE-03/seen", True), ("LIM-02", False), ("STR-02/seen", False), ("USE-01", False)],
    ],
)
def test_what_fails_is_to_be_about_what_the_first_mutant_breaks(key: str, expected: bool) -> None:
    assert is_about(key, FIRST) is expected


@pytest.mark.parametrize(
    ("seen_by", "quick", "runs", "killed"),
    [
        (Breadth.OWN, True, [Breadth.OWN], True),
        (Breadth.BESIDE, True, [Breadth.OWN, Breadth.BESIDE], True),
        (Breadth.ALL, True, list(Breadth), True),
        (None, True, list(Breadth), False),
        (None, False, [Breadth.ALL], False),
    ],
)
async def test_more_is_asked_only_where_its_own_areas_see_nothing(
    seen_by: Breadth | None, quick: bool, runs: Sequence[Breadth], killed: bool
) -> None:
    asked = []

    async def judge(mutant: Mutant, breadth: Breadth) -> Report:
        asked.append(breadth)
        sees = breadth is seen_by
        return report(outcome(Status.FAIL if sees else Status.PASS, "STR-02", "boom"))

    done = await notice(named()["one_too_many@resumed"], judge, quick)
    assert (asked, done.is_killed) == (runs, killed)
    assert done.surprises == (("STR-02",) if killed else ())
    assert done.line.startswith("killed" if killed else "LIVES")


async def test_what_nobody_reaches_is_a_fault_and_not_killed() -> None:
    async def judge(mutant: Mutant, breadth: Breadth) -> Report:
        return Report(target="", invocation="", unreachable="nothing listens")

    done = await notice(named()["one_too_many@resumed"], judge, True)
    assert (done.is_killed, done.faults) == (False, ("nothing listens",))


def test_a_longer_sample_begins_with_the_shorter_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def standing(pair: Pair) -> Standing:
        return Standing.LIVE if pair.condition.name in ("hot", "resumed") else Standing.NEVER

    monkeypatch.setattr(survey, "standing", standing)
    short, long = sample(3, 5, 1), sample(3, 9, 1)
    assert long.live[:5] == short.live
    assert len(long.live) == 9
    assert short.drawn.total() == short.drawn[Standing.LIVE] + short.drawn[Standing.NEVER]
    assert "5 of them live" in short.line
    assert f"{short.drawn[Standing.NEVER]} the condition never holds" in short.line


def test_a_few_are_drawn_when_the_whole_matrix_is_and_as_many_as_are_said() -> None:
    said = options.parse_self_test([])
    assert (wanted(said, is_whole=True), wanted(said, is_whole=False)) == (survey.SAMPLE, 0)
    for text, number in (("0", 0), ("7", 7)):
        assert wanted(options.parse_self_test(["--second-order", text]), is_whole=True) == number
    assert wanted(options.parse_self_test(["--second-order", "all"]), is_whole=False) > 10**6
    with pytest.raises(SystemExit):
        options.parse_self_test(["--second-order", "-1"])


@long
def test_the_summary_names_those_that_live(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, unseen = named()["total_wrong@resumed"], named()["one_too_many@hot"]
    invisible = replace(unseen, condition=replace(unseen.condition, holds=lambda subject: False))

    async def none() -> list[Report]:
        return []

    monkeypatch.setattr(self_test, "_judge_references", none)
    monkeypatch.setattr(
        survey, "sample", lambda *_: Sample(1, (seen, invisible), Counter({Standing.LIVE: 2}))
    )
    monkeypatch.setattr(survey, "named", lambda: {seen.name: seen, unseen.name: invisible})

    # A survivor costs a run of the whole kit: here two areas are all.
    async def judge(mutant: Mutant, breadth: Breadth) -> Report:
        return await self_test.judge(
            mutant.server, frozenset({Phase.SAFE}), run=["RES-*", "*/drawn"], companies=0
        )

    monkeypatch.setattr(self_test, "judge_at_times", judge)
    said = ["self-test", "--json", "--quick", "--workers", "1", "--run", "nobody", "--second-order", "2"]
    assert main(said) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["second_order_mutants"], found["second_order_kills"]) == (2, 1)
    assert found["second_order_survivors"] == ["one_too_many@hot"]
    assert found["second_order_drawn"] == {"live": 2}
