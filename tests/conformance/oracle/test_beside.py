from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.conformance.mutants.mixes.left_beside import WhoLeavesLogprobsIsNotCounted
from enginewire.conformance.mutants.mixes.options_beside import (
    CachedPromptsAreNotPenalised,
    RowsArePenalisedBesideOthers,
)
from enginewire.conformance.oracle import findings
from enginewire.conformance.oracle.beside import mixed
from enginewire.conformance.oracle.findings import Finding
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import CAPABILITIES, Settings
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.connection import Connection
from tests.long import long, long_but


class Large(Reference):
    """Whose slots one group of mixes does not fill."""

    settings = replace(Settings(), max_num_seqs=32, total_blocks=32 * 256)


class WrongWhenFull(Large):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        is_full = sum(len(other.choices) for other in self.running) > 24
        usage.total_tokens += is_full
        return usage


async def findings_of(server: Reference, cases: int) -> tuple[list[Finding], str]:
    running = await InProcess(server).start()
    session = Session(connection=Connection(target=running.target), options=RunOptions(cases=cases))
    await session.open()
    try:
        return await mixed(Context(session, "mixed")), session.drawn
    finally:
        await session.close()
        await running.stop()


async def test_fewer_mixes_than_were_asked_for_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await findings_of(Reference(), 8) == ([], "")
    monkeypatch.setattr(findings, "EFFORTS", -1)
    assert await findings_of(Reference(), 8) == ([], "mixes: 0 of 16, for want of time or room")


async def test_what_is_wrong_in_a_full_engine_alone_is_found() -> None:
    assert await findings_of(Large(), 16) == ([], "")
    found, _ = await findings_of(WrongWhenFull(), 16)
    assert {finding.id for finding in found} == {"INF-09"}
    assert "total_tokens" in str(found[0].violation)
    assert "only beside 15 others" in str(found[0].violation)


class OneSequence(Reference):
    settings = replace(Settings(), max_num_seqs=1)


class Rounds(Reference):
    """Whose tokens depend on the batch, as it says itself: what follows another token has other values."""

    settings = replace(Settings(), capabilities=tuple(set(CAPABILITIES) - {"batch_invariant"}))

    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        super().apply_penalties(choice, logits)
        logits[len(self.running)] += 1

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[float]:
        return [
            value + 0.1 * (token % 3) * len(self.running) / 8
            for token, value in enumerate(super().logits(tokens))
        ]


@pytest.mark.parametrize("server", long_but([Rounds], [OneSequence, Rounds]))
async def test_a_correct_server_has_no_findings_under_other_options(server: type[Reference]) -> None:
    assert (await findings_of(server(), 24))[0] == []


class WhoLeavesVisibleStopsKeepsABlock(Reference):
    """The one with the text of the stops."""

    lost = 0

    def ended(self, job: Job) -> None:
        is_live = self.live.get(job.request_id) is job
        super().ended(job)
        self.lost += is_live and bool(job.request.stop_conditions.stop_token_ids_visible)

    def load(self) -> pb.Load:
        load = super().load()
        load.kv_blocks_used += self.lost
        return load


@pytest.mark.parametrize(
    ("server", "identifier"),
    [
        pytest.param(WhoLeavesVisibleStopsKeepsABlock, "CON-07", marks=long),
        (WhoLeavesLogprobsIsNotCounted, "INF-13"),
    ],
)
async def test_what_is_wrong_when_a_caller_leaves_is_found(server: type[Reference], identifier: str) -> None:
    found, _ = await findings_of(server(), 64)
    assert {finding.id for finding in found} == {identifier}


class FailsWhoLeaves(Reference):
    """An abort of one that has a token is a fault of the server."""

    def abort(self, job: Job) -> None:
        if job.completion_tokens:
            self.fail(job, Refusal(pb.ERROR_REASON_INTERNAL, "nobody is there"))
        else:
            super().abort(job)


async def test_a_failure_of_who_was_left_is_found() -> None:
    found, _ = await findings_of(FailsWhoLeaves(), 32)
    assert {finding.id for finding in found} == {"INF-09"}
    assert "a valid request failed" in str(found[0].violation)


async def test_rows_that_others_change_are_found() -> None:
    found, _ = await findings_of(RowsArePenalisedBesideOthers(), 32)
    assert {finding.id for finding in found} == {"LOG-11"}
    assert "has another log-probability in choice" in str(found[0].violation)
    assert "only beside 15 others" in str(found[0].violation)


async def test_what_is_wrong_under_an_option_names_it() -> None:
    found, _ = await findings_of(CachedPromptsAreNotPenalised(), 64)
    assert {finding.id for finding in found} == {"INF-09"}
    assert "other tokens than the greedy run" in str(found[0].violation)
    assert ", under repetition_penalty; mix" in str(found[0].violation)
