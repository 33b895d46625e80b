from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.conformance.checks import all_checks
from enginewire.conformance.mutants.scheduling.cancellation import LeakOnCancel
from enginewire.conformance.mutants.server.discovery import InfoUnimplemented
from enginewire.conformance.proof.self_test import judge
from enginewire.conformance.reference.adversaries import ADVERSARIES, Adversary
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.accompanied import IN_COMPANY
from enginewire.conformance.running.monitor import watch
from enginewire.conformance.running.monitor.invariant import ANSWERS
from enginewire.conformance.running.outcome import ExitCode, Status
from enginewire.conformance.running.registry import Phase
from enginewire.conformance.running.runner import Runner
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.bounds import Bounds
from enginewire.conformance.session.context import REFUSALS, Context
from enginewire.conformance.session.run_options import COMPANIES
from enginewire.conformance.session.session import Session, Unreachable
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.tasks import stop
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect
from tests.conformance.judging import judged, made_up, statuses
from tests.long import long_but


async def passes(ctx: Context) -> None:
    await ctx.generate(ctx.request())


async def fails(ctx: Context) -> None:
    raise Violation("no", expected=1, seen=2)


async def with_logprobs(ctx: Context) -> None:
    await ctx.generate(ctx.request(logprobs=1))


class TotalWrong(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.total_tokens = 1
        return usage


class SumsOfLongAnswers(Reference):
    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        async for output in super().outputs(job):
            if output.HasField("cum_log_probs"):
                output.cum_log_probs = -1000.0
            yield output


@pytest.mark.long
async def test_the_reference_conforms_as_an_address_alone_and_with_all_that_a_run_can_be_given() -> None:
    alone = await judged()
    assert [outcome.key for outcome in alone.unexpected] == []
    assert alone.exit_code() == ExitCode.CONFORMANT
    passed = {key for key, status in statuses(alone).items() if status is Status.PASS}
    assert len(passed) > 30
    # With processes to start, adapters and metrics: what could not run or did not apply before.
    rest = [check.key for check in all_checks() if check.key not in passed]
    given = await judge(Reference, frozenset(Phase), run=rest, companies=0)
    assert [outcome.key for outcome in given.unexpected] == []
    assert given.counts[Status.PASS] > 30
    assert Status.NOT_RUN not in {statuses(given)[key] for key in rest}


async def test_requests_of_somebody_else_are_noticed_before_anything_is_judged() -> None:
    server = await InProcess(Reference()).start()
    said: list[str] = []

    async def is_said(ctx: Context) -> None:
        expect(said, "nothing was said before the first check")

    other = Session(connection=Connection(target=server.target))
    ctx = Context(other, "another-kit")
    await ctx.start(ctx.request(max_tokens=2000)).first_token()
    session = Session(connection=Connection(target=server.target))
    report = await Runner(session, [made_up("STR-01", is_said)], Selection(), say=said.append).run()
    await ctx.close()
    await other.close()
    await server.stop()
    assert statuses(report)["STR-01"] is Status.PASS
    assert said[0].startswith("the server has 1 requests of somebody else")


async def test_requests_that_somebody_else_sends_meanwhile_are_noticed() -> None:
    """Two kits that begin together: at no single moment there need be a request of the other one."""
    server = await InProcess(Reference()).start()
    sessions = [Session(connection=Connection(target=server.target)) for _ in range(2)]
    await asyncio.gather(*(session.open() for session in sessions))
    others = [session.others for session in sessions]
    for session in sessions:
        await session.close()
    await server.stop()
    assert max(others) > 0


@pytest.mark.parametrize(
    ("others", "alone", "verdict", "code"),
    [
        (True, True, Status.BLOCKED, ExitCode.DISTURBED),
        (True, False, Status.FAIL, ExitCode.VIOLATION),
        (False, True, Status.FAIL, ExitCode.VIOLATION),
    ],
)
async def test_what_has_to_be_alone_and_fails_beside_requests_of_somebody_else_is_not_the_engines_fault(
    others: bool, alone: bool, verdict: Status, code: ExitCode
) -> None:
    """They came after the kit had looked who is there."""
    server = await InProcess(Reference()).start()
    other = Session(connection=Connection(target=server.target))
    asking = list[asyncio.Task[None]]()

    async def ask() -> None:
        while True:
            ctx = Context(other, "another-kit")
            await ctx.generate(ctx.request(max_tokens=1))
            ctx.forget()

    async def is_disturbed(ctx: Context) -> None:
        if others and not asking:
            asking.append(asyncio.create_task(ask()))
        await fails(ctx)

    session = Session(connection=Connection(target=server.target))
    checks = [made_up("STR-01", passes), made_up("STR-02", is_disturbed, alone=alone)]
    report = await Runner(session, checks, Selection()).run()
    await stop(asking)
    await other.close()
    await server.stop()
    assert (statuses(report)["STR-02"], report.exit_code()) == (verdict, code)
    assert bool(report.no_verdict) == (code is ExitCode.DISTURBED)
    assert report.unexpected[0].seen == "2"


async def test_what_a_server_holds_too_long_is_nobody_elses() -> None:
    """It ends some time, which is no request of another caller."""
    server = await InProcess(Reference()).start()
    held = Session(connection=Connection(target=server.target))
    ctx = Context(held, "left-over")

    async def leaves_something(_: Context) -> None:
        await ctx.start(ctx.request(max_tokens=50)).first_token()
        await fails(ctx)

    session = Session(connection=Connection(target=server.target))
    checks = [made_up("STR-01", leaves_something, alone=True)]
    report = await Runner(session, checks, Selection(), say=print).run()
    await ctx.close()
    await held.close()
    await server.stop()
    assert statuses(report)["STR-01"] is Status.FAIL


class GetsBusy(Reference):
    """As fast as any other one, until its machine has something else to do."""

    def start_something_else(self) -> None:
        self.settings = replace(self.settings, step_seconds=0.05, first_token_seconds=0.2)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("judges_again", "verdict"), [(True, Status.PASS), (False, Status.FAIL)])
async def test_what_fails_for_want_of_time_is_judged_again_once_the_machine_got_busy(
    judges_again: bool, verdict: Status, alone: bool
) -> None:
    busy, tries, said, told = GetsBusy(), [], list[str](), list[tuple[str, Status, int]]()

    async def is_impatient(ctx: Context) -> None:
        tries.append(ctx.bounds.reaction)
        busy.start_something_else()
        expect(ctx.bounds.reaction > 4.0, "it took too long")

    server = await InProcess(busy).start()
    session = Session(connection=Connection(target=server.target))
    checks = [made_up("STR-01", is_impatient, alone=alone), made_up("STR-02", passes, needs=("STR-01",))]
    report = await Runner(
        session,
        checks[: 1 if alone else 2],
        Selection(judges_again=judges_again),
        watch=lambda outcome, left: told.append((outcome.key, outcome.status, left)),
        say=said.append,
    ).run()
    await server.stop()
    assert statuses(report)["STR-01"] is verdict
    in_company = [key for key, *_ in told if key.endswith(IN_COMPANY)]
    assert len(in_company) == (COMPANIES * len(checks[: 1 if alone else 2]) if judges_again else 0)
    told = [each for each in told if each[0] not in in_company]
    if alone:
        assert told == [("STR-01", verdict, 0)]
    else:
        # What was not judged because of it is now, and each has one verdict.
        needing = Status.PASS if judges_again else Status.BLOCKED
        assert told == [("STR-01", verdict, 1), ("STR-02", needing, 0)]
    assert len(tries) - COMPANIES * judges_again == 1 + judges_again
    assert any(line.startswith("the target is much slower than it was") for line in said) == judges_again


async def test_a_failure_at_the_speed_that_was_measured_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    async def as_fast_as_it_was(session: Session) -> bool:
        return False

    # What a busy machine would measure is not what this is about.
    monkeypatch.setattr(Session, "is_slower", as_fast_as_it_was)

    async def fails_often(ctx: Context) -> None:
        tries.append(ctx)
        await fails(ctx)

    report = await judged(checks=[made_up("STR-01", fails_often, alone=True)])
    assert (statuses(report)["STR-01"], len(tries)) == (Status.FAIL, 1)


async def test_a_quiet_server_is_judged_without_a_word() -> None:
    server = await InProcess(Reference()).start()
    said: list[str] = []
    session = Session(connection=Connection(target=server.target))
    await Runner(session, [made_up("STR-01", passes)], Selection(), say=said.append).run()
    await server.stop()
    assert said == []


async def test_a_violation_of_a_must_fails_and_shows_its_evidence() -> None:
    async def asks_then_fails(ctx: Context) -> None:
        await passes(ctx)
        await fails(ctx)

    report = await judged(checks=[made_up("STR-01", asks_then_fails)])
    (outcome,) = report.unexpected
    assert (outcome.status, outcome.expected, outcome.seen) == (Status.FAIL, "1", "2")
    assert [exchange.method for exchange in outcome.exchanges] == ["EngineService.Generate"]
    assert report.exit_code() == ExitCode.VIOLATION


async def test_the_calls_of_a_check_are_let_go_but_for_what_somebody_may_want_to_see() -> None:
    async def asks_often(ctx: Context) -> None:
        for _ in range(20):
            await ctx.client.load()

    async def asks_often_then_fails(ctx: Context) -> None:
        await asks_often(ctx)
        await fails(ctx)

    server = await InProcess(Reference()).start()
    session = Session(connection=Connection(target=server.target))
    checks = [made_up("STR-01", asks_often), made_up("STR-03", asks_often_then_fails)]
    report = await Runner(session, checks, Selection()).run()
    await server.stop()
    kept = {each.key: len(each.exchanges) for each in report.outcomes}
    assert (kept["STR-01"], kept["STR-03"]) == (8, 20)
    assert len(list(session.exchanges)) < 20
    assert report.watched >= 40


async def test_what_the_monitor_sees_in_the_traffic_of_a_check_is_an_outcome_of_its_own() -> None:
    for server in (TotalWrong, SumsOfLongAnswers):
        report = await judged(server, [made_up("STR-01", with_logprobs), made_up("HLT-01", fails)])
        (outcome,) = [each for each in report.unexpected if each.key.endswith("/seen")]
        is_must = outcome.requirement.is_must
        assert outcome.status is (Status.FAIL if is_must else Status.WARN)
        assert "in the traffic of " in outcome.message
        assert [exchange.method for exchange in outcome.exchanges] == ["EngineService.Generate"]
        assert report.watched >= 4
    right = await judged(checks=[made_up("STR-01", with_logprobs)])
    assert right.watched >= 4
    assert not right.unexpected


async def test_what_the_monitor_sees_can_be_left_out_and_needs_not_be_chosen() -> None:
    checks = [made_up("STR-01", passes), made_up("STR-02", passes)]
    chosen = await judged(TotalWrong, checks, Selection(run=["STR-01"]))
    assert [each.key for each in chosen.unexpected] == ["USE-03/seen"]
    for pattern in ("USE-*", "USE-03/seen"):
        assert not (await judged(TotalWrong, checks, Selection(skip=[pattern]))).unexpected


async def test_what_follows_from_a_check_that_failed_is_not_seen_as_well() -> None:
    for need in ("STR-02", "USE-04"):
        report = await judged(TotalWrong, [made_up("STR-01", passes), made_up(need, fails)])
        assert [each.key for each in report.unexpected] == [need]


async def test_what_a_check_does_to_a_server_of_its_own_is_seen_as_well() -> None:
    checks = [made_up("DRN-01", passes, phase=Phase.DESTRUCTIVE)]
    report = await judged(checks=checks, selection=Selection(phases=frozenset({Phase.DESTRUCTIVE})))
    assert report.watched >= 4


async def test_a_violation_of_a_should_is_a_warning_unless_strict() -> None:
    report = await judged(checks=[made_up("STR-12", fails), made_up("STR-01", passes)])
    assert statuses(report)["STR-12"] is Status.WARN
    assert (report.exit_code(), report.exit_code(strict=True)) == (ExitCode.CONFORMANT, ExitCode.VIOLATION)


async def test_what_needs_a_failed_check_is_blocked() -> None:
    checks = [
        made_up("STR-01", fails),
        made_up("STR-02", passes, needs=("STR-01",)),
        made_up("STR-03", passes),
    ]
    seen = statuses(await judged(checks=checks))
    assert (seen["STR-02"], seen["STR-03"]) == (Status.BLOCKED, Status.PASS)


async def test_what_runs_alone_waits_for_what_it_needs() -> None:
    checks = [
        made_up("STR-01", passes, alone=True, needs=("STR-03",)),
        made_up("STR-02", passes, alone=True),
        made_up("STR-03", fails, alone=True),
    ]
    seen = statuses(await judged(checks=checks))
    assert (seen["STR-01"], seen["STR-02"]) == (Status.BLOCKED, Status.PASS)


async def test_without_facts_about_the_engine_everything_is_blocked() -> None:
    report = await judged(InfoUnimplemented)
    ran = {key: status for key, status in statuses(report).items() if status is not Status.NOT_RUN}
    assert ran.pop("INF-01") is Status.FAIL
    assert set(ran.values()) == {Status.BLOCKED}


async def test_a_capability_that_is_absent_and_refused_is_a_result() -> None:
    async def is_refused(ctx: Context) -> None:
        await ctx.rejects({"best_of": 2}, codes=REFUSALS)

    checks = [
        made_up("ERR-17", is_refused, variant="data_parallel", unless="data_parallel"),
        made_up("PRB-05", fails),
    ]
    seen = statuses(await judged(checks=checks))
    assert (seen["ERR-17/data_parallel"], seen["PRB-05"]) == (Status.PASS, Status.NEG_PASS)


async def test_a_fault_of_the_kit_never_blames_the_target() -> None:
    async def breaks(ctx: Context) -> None:
        raise KeyError("oops")

    report = await judged(checks=[made_up("STR-01", breaks)])
    assert (statuses(report)["STR-01"], report.exit_code()) == (Status.ERROR, ExitCode.KIT_FAULT)


async def test_a_fault_of_an_invariant_is_an_error_of_its_id_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(answer: object) -> None:
        raise IndexError("oops")

    broken = [replace(each, function=breaks) if each.id == "USE-03" else each for each in ANSWERS]
    monkeypatch.setattr(watch, "ANSWERS", broken)
    report = await judged(TotalWrong, [made_up("STR-01", passes)])
    assert statuses(report)["USE-03/seen"] is Status.ERROR
    assert "IndexError: oops, in the traffic of " in report.unexpected[0].message
    assert (statuses(report)["STR-01"], report.exit_code()) == (Status.PASS, ExitCode.KIT_FAULT)


async def test_a_check_that_does_not_apply_says_why() -> None:
    async def does_not_apply(ctx: Context) -> None:
        raise NotApplicable("no window")

    report = await judged(checks=[made_up("LIM-05", does_not_apply)])
    assert [o.message for o in report.outcomes if o.key == "LIM-05"] == ["no window"]


async def test_results_that_differ_are_flaky() -> None:
    results = iter([passes, fails])

    async def alternates(ctx: Context) -> None:
        await next(results)(ctx)

    report = await judged(checks=[made_up("STR-01", alternates)], selection=Selection(repeat=2))
    assert (statuses(report)["STR-01"], report.exit_code()) == (Status.FLAKY, ExitCode.VIOLATION)


async def test_a_selection_that_matches_nothing_is_no_success() -> None:
    report = await judged(selection=Selection(run=["XYZ-*"]))
    assert report.exit_code() == ExitCode.NOTHING_RAN


async def test_destructive_checks_run_only_when_they_are_allowed() -> None:
    checks = [made_up("DRN-01", passes, phase=Phase.DESTRUCTIVE)]
    assert statuses(await judged(checks=checks))["DRN-01"] is Status.NOT_RUN
    allowed = Selection(phases=frozenset({Phase.DESTRUCTIVE}))
    assert statuses(await judged(checks=checks, selection=allowed))["DRN-01"] is Status.PASS


async def test_a_server_that_cannot_be_replaced_is_ended_once() -> None:
    checks = [made_up(key, passes, phase=Phase.DESTRUCTIVE) for key in ("DRN-01", "DRN-02")]
    allowed = Selection(phases=frozenset({Phase.DESTRUCTIVE}))
    report = await judged(checks=checks, selection=allowed)
    assert statuses(report)["DRN-01"] is Status.PASS
    ((status, message),) = [(o.status, o.message) for o in report.outcomes if o.key == "DRN-02"]
    assert (status, message) == (Status.NOT_RUN, "an earlier check ended this server: needs --launch")


async def test_what_a_check_leaves_running_is_ended() -> None:
    servers: list[Reference] = []

    def make() -> Reference:
        servers.append(Reference())
        return servers[0]

    async def leaves_a_stream(ctx: Context) -> None:
        await ctx.start(ctx.long_request()).first_token()

    async def finds_idle(ctx: Context) -> None:
        await ctx.idle()

    checks = [made_up("STR-01", leaves_a_stream), made_up("STR-02", finds_idle, alone=True)]
    assert statuses(await judged(make, checks))["STR-02"] is Status.PASS
    assert servers[0].live == {}


async def test_what_a_check_cancelled_is_ended_where_the_server_does_not_notice() -> None:
    servers: list[Reference] = []

    def make() -> Reference:
        servers.append(LeakOnCancel())
        return servers[0]

    async def cancels(ctx: Context) -> None:
        stream = await ctx.start(ctx.long_request()).first_token()
        stream.cancel()
        await stream.end()

    async def finds_idle(ctx: Context) -> None:
        expect(not servers[0].live, "something still runs")

    checks = [made_up("STR-01", cancels), made_up("STR-02", finds_idle, alone=True)]
    assert statuses(await judged(make, checks))["STR-02"] is Status.PASS


async def test_a_check_that_hangs_fails_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bounds, "check", 0.3)

    async def hangs(ctx: Context) -> None:
        await asyncio.Event().wait()

    once = Selection(judges_again=False)
    report = await judged(checks=[made_up("STR-01", hangs)], selection=once)
    [hung] = report.unexpected
    assert hung.key == "STR-01"
    # The seconds are those of the probes before it, which take longer on a busy machine.
    assert re.fullmatch(r"no verdict within \d+ s", hung.message)


async def test_nothing_at_the_address_is_not_a_verdict() -> None:
    session = Session(connection=Connection(target="unix:/nowhere.sock"), time_scale=0.1)
    with pytest.raises(Unreachable):
        await Runner(session, all_checks(), Selection()).run()


@pytest.mark.parametrize("name", long_but(set(ADVERSARIES) - {"hang"}, ADVERSARIES))
async def test_an_adversary_passes_nothing(name: str) -> None:
    report = await judged(lambda: Adversary(name), time_scale=0.1)
    assert report.counts[Status.PASS] + report.counts[Status.NEG_PASS] == 0
    assert report.exit_code() == ExitCode.VIOLATION
