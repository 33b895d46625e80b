from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.conformance import engine_conformance, judge, judging, render
from enginewire.conformance.mutants.options.limits import OneTooMany
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.running.registry import Check, Phase
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.session import Unreachable
from tests.conformance.judging import made_up, statuses


@asynccontextmanager
async def broken_server() -> AsyncIterator[str]:
    server = await InProcess(OneTooMany()).start()
    yield server.target
    await server.stop()


@pytest.fixture
def drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checks, each of which ends its server."""

    async def drain(ctx: object) -> None:
        assert (await ctx.client.load()).state == pb.ENGINE_STATE_READY  # type: ignore[attr-defined]  # a context
        await ctx.client.ask("EngineService.Drain", pb.DrainRequest())  # type: ignore[attr-defined]  # a context

    checks: list[Check] = [made_up(key, drain, phase=Phase.DESTRUCTIVE) for key in ("DRN-01", "DRN-02")]
    monkeypatch.setattr(judging, "all_checks", lambda: checks)


async def test_a_running_server_is_judged(tmp_path: Path) -> None:
    async with broken_server() as target:
        report = await judge(target, run=["LIM-0[12]"])
        assert (report.is_conformant, statuses(report)["LIM-01"]) == (False, Status.FAIL)
        assert "FAIL LIM-01" in render(report)
        known = tmp_path / "known.yaml"
        known.write_text('- {"id": "LIM-01", "reason": "off by one"}\n')
        report = await judge(target, run=["LIM-0[12]"], baseline=known)
        assert (report.is_conformant, statuses(report)["LIM-01"]) == (True, Status.XFAIL)


@pytest.mark.parametrize("through_a_factory", [False, True])
async def test_a_level_and_what_is_drawn_can_be_said(
    monkeypatch: pytest.MonkeyPatch, through_a_factory: bool
) -> None:
    told = []

    async def note(ctx: object) -> None:
        told.append(ctx.session.options)  # type: ignore[attr-defined]  # a context

    checks = [made_up(key, note) for key in ("STR-01", "CAN-01", "SEQ-01")]
    monkeypatch.setattr(judging, "all_checks", lambda: checks)
    if through_a_factory:
        report = await engine_conformance(broken_server, level=1, seed=7, cases=3)
    else:
        async with broken_server() as target:
            report = await judge(target, level=1, seed=7, cases=3)
    assert {key for key, status in statuses(report).items() if status is Status.PASS} == {"STR-01"}
    assert {(given.seed, given.cases) for given in told} == {(7, 3)}


async def test_nothing_to_judge_is_no_verdict() -> None:
    with pytest.raises(Unreachable):
        await judge("unix:/nowhere.sock", time_scale=0.1)


async def test_more_companies_than_there_are_make_no_sense() -> None:
    with pytest.raises(ValueError, match="companies: 0 to 8, got 9"):
        await judge("unix:/nowhere.sock", companies=9)


async def test_an_option_that_there_is_not_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="there is no option levle"):
        await judge("unix:/nowhere.sock", levle=1)  # type: ignore[call-arg]  # mypy knows it too


@pytest.mark.usefixtures("drains")
async def test_each_check_that_ends_a_server_gets_its_own_from_the_factory() -> None:
    alive = []

    @asynccontextmanager
    async def server() -> AsyncIterator[str]:
        serving = await InProcess(Reference()).start()
        alive.append(serving.target)
        yield serving.target
        await serving.stop()
        alive.remove(serving.target)

    report = await engine_conformance(server)
    assert {statuses(report)[key] for key in ("DRN-01", "DRN-02")} == {Status.PASS}
    assert alive == []


async def test_a_server_that_its_factory_cannot_start_is_the_callers_fault() -> None:
    @asynccontextmanager
    async def server() -> AsyncIterator[str]:
        raise OSError("no such weights")
        yield ""

    with pytest.raises(OSError, match="no such weights"):
        await engine_conformance(server)
