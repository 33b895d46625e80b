from __future__ import annotations

import time
from dataclasses import replace

import pytest

from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session import bounds
from enginewire.conformance.session.bounds import Bounds
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.connection import Connection


def test_a_request_lasts_however_fast_the_target_turns_out_to_be() -> None:
    assert Bounds(itl=0.5, least_itl=0.001).tokens_in(1.0) == 1000


def test_a_generation_is_never_waited_for_so_long_that_the_deadline_overflows() -> None:
    slow = Bounds(ttft=60.0, itl=60.0, scale=100.0)
    nanoseconds = 1e9 * (time.time() + 2 * slow.generation(3 * 2**32, 2**32))
    assert nanoseconds < 2**63


def test_a_generation_has_at_least_the_patience_of_a_unary_call() -> None:
    assert Bounds().generation(1) >= 2 * Bounds().answer


def test_a_stall_while_measuring_only_widens_the_bounds() -> None:
    assert Bounds(itl=0.5, least_itl=0.001).reaction == Bounds(itl=0.5).reaction == 10.0


def test_a_target_that_was_not_measured_counts_as_a_fast_one() -> None:
    assert Bounds().tokens_in(0.3) == 15_000
    assert Bounds(least_itl=2.0).tokens_in(0.3) == 1


class Slow(Reference):
    settings = replace(Settings(), first_token_seconds=0.2, step_seconds=0.2)


class RefusesAll(Reference):
    settings = replace(Settings(), max_request_bytes=4)


async def bounds_of(server: Reference) -> Bounds:
    running = await InProcess(server).start()
    session = Session(connection=Connection(target=running.target))
    await session.open()
    await session.close()
    await running.stop()
    return session.bounds


async def test_a_slow_target_is_measured_by_what_it_sends_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its tokens would take longer than anybody waits."""
    monkeypatch.setattr(bounds, "ENOUGH_SECONDS", 0.5)
    found = await bounds_of(Slow())
    # Messages that a busy machine reads late seem to have come closer together.
    assert (found.ttft >= 0.2, found.least_itl >= 0.05) == (True, True)
    assert "measured first token" in found.describe()


async def test_a_target_that_serves_nothing_gets_the_floors_and_it_is_said() -> None:
    found = await bounds_of(RefusesAll())
    assert (found.ttft, found.itl, found.reaction) == (0.0, 0.0, 2.0)
    assert "not measured" in found.describe()


async def test_a_target_whose_first_token_never_comes_gets_the_floors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "FIRST_TOKEN_SECONDS", 0.05)
    assert (await bounds_of(Slow())).ttft == 0.0
