"""Named sets of requirements, and a bare engine judged by its own."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.conformance import judge
from enginewire.conformance.report import standing
from enginewire.conformance.requirements.profiles import BARE, OF_BARE, OF_BARE_WITH, is_of
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running.outcome import Report, Status
from tests.long import long
from tests.repository import ROOT
from tests.server.engines.upstream.raw import BareEngine, RawServer

PAGE = (ROOT / "docs" / "contract.md").read_text()
SECTION = PAGE.partition("## The bare profile")[2].partition("\n## ")[0]
ROWS = [line.split("|")[2:4] for line in SECTION.splitlines() if line.startswith("|")]


def named(column: int) -> set[str]:
    return {name for row in ROWS for name in re.findall("[A-Z]{3}-[0-9]{2}", row[column])}


def test_the_contract_has_the_same_list() -> None:
    assert named(0) == OF_BARE
    assert named(1) == OF_BARE_WITH


def test_every_bare_engine_keeps_core_and_what_is_gated_is_for_some() -> None:
    assert {requirements()[name].gate for name in OF_BARE} == {"core"}
    assert all(requirements()[name].is_must for name in OF_BARE)
    assert "core" not in {requirements()[name].gate for name in OF_BARE_WITH}


def test_other_names_are_groups_of_the_contract() -> None:
    assert is_of(requirements()["VER-01"], "core")
    assert not is_of(requirements()["VER-01"], BARE)
    assert is_of(requirements()["LOG-09"], "logprobs")
    assert not is_of(requirements()["LOG-09"], BARE)


@pytest.fixture
async def raw(socket_folder: Path) -> AsyncIterator[RawServer]:
    server = RawServer(socket_folder)
    yield server
    await server.end()


async def judged_as_bare(raw: RawServer, engine: object, *run: str) -> Report:
    await raw.start(engine)
    return await judge(raw.target, profiles=[BARE], run=run)


@long
async def test_a_bare_engine_keeps_its_profile_and_little_else(raw: RawServer) -> None:
    report = await judged_as_bare(raw, BareEngine())
    assert report.is_conformant, [str(each) for each in report.unexpected]
    assert standing.lines(report)[0] == "profile: bare"
    ran = {each.requirement.id for each in report.outcomes if each.status is not Status.NOT_RUN}
    assert ran <= OF_BARE | OF_BARE_WITH
    assert {each.requirement.id for each in report.outcomes if each.status is Status.PASS} >= OF_BARE - {
        *("SAM-07", "SAM-11", "SAM-16")
    }


class WithoutMatch(BareEngine):
    """Breaks one rule of the profile, and says so little of a failure that ERR-12 would be broken too."""

    async def Generate(self, generate: pb.GenerateRequest, call: grpc.aio.ServicerContext):  # noqa: N802
        if not generate.request.token_ids:
            await call.abort(grpc.StatusCode.UNKNOWN, "no tokens")
        async for response in super().Generate(generate, call):
            response.output.ClearField("stop_match")
            yield response


async def test_one_that_breaks_it_fails_in_that_alone(raw: RawServer) -> None:
    report = await judged_as_bare(raw, WithoutMatch(), "STP-*", "STR-*")
    failed = {each.requirement.id for each in report.outcomes if each.status is Status.FAIL}
    assert failed == {"STP-03"}
