from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.conformance.mutants.mixes.guided_beside import (
    GuidedRowsAreMasked,
    GuidedRowsTakeTheSecondToken,
    GuidesBeginAnewBehindACut,
)
from enginewire.conformance.oracle.findings import Finding
from enginewire.conformance.oracle.guided import ROOM, GuidedMix, drawn, guided, smaller
from enginewire.conformance.oracle.languages import LANGUAGES, Language
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import CAPABILITIES, Settings, without
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.violation import NotApplicable

RUNS = (Greedy([5, 6, 7], [10, 11, 12, 13, 14, 2]), Greedy([5, 6, 7], [20, 21, 22, 2]))
MATCHES = {"GDE-01": ['{"ok": true}', '{"ok":false}'], "GDE-02": ["0042"], "GDE-03": ["green", "greenish"]}
OTHERS = {
    "GDE-01": ['{"ok": 1}', '{"no": true}', '{"ok": true}}', "true"],
    "GDE-02": ["123", "12345", "12a4", ""],
    "GDE-03": ["gree", "greenis", "red", ""],
}


@pytest.mark.parametrize("known", LANGUAGES, ids=lambda language: str(language.id))
def test_a_match_and_all_its_beginnings_are_known(known: Language) -> None:
    for text in MATCHES[known.id]:
        assert known.matches(text)
        assert all(known.may_become(text[:length]) for length in range(len(text) + 1))
    for text in OTHERS[known.id]:
        assert not known.matches(text)
    assert not known.may_become("x")
    assert not known.may_become(MATCHES[known.id][-1] + "x")


def test_the_guided_cases_of_a_seed_are_the_same_however_many_are_drawn() -> None:
    first = drawn(1, 60, RUNS, Reference().config)
    assert first[:10] == drawn(1, 10, RUNS, Reference().config)
    assert first != drawn(2, 60, RUNS, Reference().config)
    assert {len(mix.case.resumed) for mix in first} == {0, 1, 2}
    for mix in first:
        # What ends a run is not handed in, and there is something left to generate.
        inner = len(RUNS[mix.case.prompt].tokens) - 1
        assert all(1 <= cut < min(inner, mix.case.max_tokens) for cut in mix.case.resumed)


def test_what_an_engine_does_not_offer_is_not_asked_for() -> None:
    modest = pb.EngineConfig(vocab_size=60)
    for mix in drawn(1, 60, RUNS, modest):
        beside = (mix.has_seed, mix.logprobs, mix.case.multiplexed, mix.case.resumed, mix.case.n)
        assert beside == (False, False, False, (), 1)


def test_a_guided_case_gets_simpler_until_nothing_is_beside_it() -> None:
    for mix in drawn(3, 20, RUNS, Reference().config):
        while following := next(smaller(mix), None):
            mix = following
        plain = GuidedMix(case=replace(mix.case, prompt=0))
        assert (plain.case.described, plain.described) == (f"max_tokens {ROOM}, together",) * 2


async def findings_of(server: Reference, *, cases: int = 64, seed: int = 1) -> list[Finding]:
    running = await InProcess(server).start()
    options = RunOptions(cases=cases, seed=seed)
    session = Session(connection=Connection(target=running.target), options=options)
    await session.open()
    try:
        return await guided(Context(session, "guided"))
    finally:
        await session.close()
        await running.stop()


class GuidesAlone(Reference):
    settings = replace(Settings(), capabilities=("tokenizer",))


class OneSlot(Reference):
    settings = replace(Settings(), max_num_seqs=1, max_queued=4)


@pytest.mark.parametrize("server", [Reference, GuidesAlone, OneSlot])
async def test_a_correct_server_has_no_findings(server: type[Reference]) -> None:
    assert await findings_of(server()) == []


@pytest.mark.parametrize(
    ("server", "ids"),
    [
        (GuidesBeginAnewBehindACut, {"GDE-01", "GDE-02", "GDE-03"}),
        (GuidedRowsTakeTheSecondToken, {"SAM-01"}),
        (GuidedRowsAreMasked, {"LOG-11"}),
    ],
)
async def test_what_is_wrong_beside_something_alone_is_found(server: type[Reference], ids: set[str]) -> None:
    assert {finding.id for finding in await findings_of(server())} == ids


class SecondTokensOfABatch(GuidedRowsTakeTheSecondToken):
    """Says that its tokens may depend on the batch: then only the rows tell that a better one was allowed."""

    settings = replace(Settings(), capabilities=tuple(set(CAPABILITIES) - {"batch_invariant"}))


async def test_a_better_token_that_a_guide_allows_is_found_in_the_rows() -> None:
    [finding] = await findings_of(SecondTokensOfABatch())
    assert (finding.id, "a better one is allowed" in str(finding.violation)) == ("SAM-01", True)


async def test_a_failure_names_its_case_and_the_fewest_options() -> None:
    found = await findings_of(GuidesBeginAnewBehindACut())
    message = str(next(finding.violation for finding in found if finding.id == "GDE-02"))
    assert "(max_tokens 64, prompt 1, resumed [" in message
    assert "guided case" in message
    assert "of seed 1)" in message


class WithoutText(Reference):
    settings = without("tokenizer")


async def test_without_a_tokenizer_nothing_is_judged() -> None:
    with pytest.raises(NotApplicable, match="tokenizer"):
        await findings_of(WithoutText())
    with pytest.raises(NotApplicable, match="--cases 0"):
        await findings_of(Reference(), cases=0)
