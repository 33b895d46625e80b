from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.conformance.client_side.checks import client_checks
from enginewire.conformance.client_side.judge import judge
from enginewire.conformance.client_side.mutants import client_mutants
from enginewire.conformance.client_side.reference.backend import ReferenceBackend, Request
from enginewire.conformance.client_side.stage.backends import InProcessStarter, RunningBackends
from enginewire.conformance.client_side.stage.facts import Facts
from enginewire.conformance.mutants import Mutant
from enginewire.conformance.proof.self_test import judge_backend, judge_mutant, kill
from enginewire.conformance.reference.adversaries import Adversary
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running.outcome import ExitCode, Status
from enginewire.conformance.running.selection import Selection
from tests.long import long


@long
async def test_the_reference_backend_passes_everything() -> None:
    report = await judge_backend(ReferenceBackend)
    assert report.counts == {Status.PASS: len(client_checks())}
    assert report.exit_code() is ExitCode.CONFORMANT


@pytest.mark.parametrize("name", ["client/leaks_the_beginning_of_a_stop", "client/resume_names_a_stale_life"])
async def test_a_broken_backend_fails_exactly_its_checks(name: str) -> None:
    mutant = next(mutant for mutant in client_mutants() if mutant.name == name)
    done = await kill(mutant)
    assert done.is_exact, done


async def test_what_a_backend_does_only_now_and_then_is_flaky() -> None:
    class Forgetful(ReferenceBackend):
        asked = 0

        def usage(self, request: Request) -> pb.CompletionUsage:
            Forgetful.asked += 1
            return super().usage(request) if Forgetful.asked % 2 else pb.CompletionUsage()

    report = await judge(InProcessStarter(Forgetful), Selection(run=["CLI-24"], skip=["*/*"], repeat=2))
    flaky = [outcome.key for outcome in report.outcomes if outcome.status is Status.FLAKY]
    assert flaky == ["CLI-24"]


@long
async def test_a_backend_that_is_not_broken_stays_alive() -> None:
    done = await kill(Mutant("client/not_broken", ("CLI-02",), ReferenceBackend))
    assert (done.is_killed, done.failed) == (False, ())


async def test_the_proof_of_a_mutant_leaves_out_what_takes_long_and_is_not_about_it() -> None:
    mutant = next(mutant for mutant in client_mutants() if mutant.name == "client/visible_stop_twice")
    report = await judge_mutant(mutant)
    costly = {check.key for check in client_checks() if check.is_costly}
    assert {outcome.key for outcome in report.outcomes if outcome.status is Status.NOT_RUN} == costly


async def test_without_a_way_through_nothing_else_is_judged() -> None:
    mutant = next(mutant for mutant in client_mutants() if mutant.name == "client/every_end_is_stop")
    report = await judge_backend(mutant.server)
    assert report.counts == {Status.FAIL: 1, Status.BLOCKED: len(client_checks()) - 1}


async def test_a_check_that_needs_another_one_by_its_key_waits_for_it() -> None:
    mutant = next(mutant for mutant in client_mutants() if mutant.name == "client/starts_again")
    report = await judge_backend(mutant.server, run=["CLI-13"], skip=["*/without-resume"])
    seen = {outcome.key: outcome.status for outcome in report.outcomes if outcome.requirement.id == "CLI-13"}
    assert seen["CLI-13/with-resume"] is Status.FAIL
    assert seen["CLI-13/held"] is Status.BLOCKED


@pytest.mark.parametrize("adversary", ["null", "hang", "garbage"])
async def test_a_server_that_is_no_backend_passes_nothing(adversary: str) -> None:
    report = await judge_backend(lambda engine: Adversary(adversary), time_scale=0.1)
    assert Status.PASS not in report.counts


async def test_a_failure_shows_the_calls_of_both_sides() -> None:
    mutant = next(mutant for mutant in client_mutants() if mutant.name == "client/max_tokens_not_enforced")
    starter = InProcessStarter(mutant.server)
    report = await judge(starter, Selection(run=("CLI-08",), skip=("*/drawn",)), time_scale=0.2)
    (failure,) = report.unexpected
    methods = {exchange.method for exchange in failure.exchanges}
    assert methods == {"BackendService.Generate", "EngineService.Generate (of the backend)"}


async def test_stands_are_shared_by_kind_of_engine() -> None:
    backends = RunningBackends(InProcessStarter(ReferenceBackend), 1.0)
    try:
        first = await backends.shared()
        assert await backends.shared() is first
        assert await backends.shared(Facts(resume=False)) is not first
    finally:
        await backends.close()


def test_every_requirement_of_backends_has_a_check_and_every_check_a_mutant() -> None:
    ids = {name for name, requirement in requirements().items() if requirement.gate == "backend"}
    assert {check.id for check in client_checks()} == ids
    killed = {key for mutant in client_mutants() for key in mutant.kills}
    assert {check.key for check in client_checks()} == killed
