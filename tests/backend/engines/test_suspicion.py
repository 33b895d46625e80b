"""Whom the death of an engine is blamed on."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.suspicion import PROGRESS_TOKENS, Suspicion


class Asker:
    """A request that is sent to engines which die."""

    def __init__(self) -> None:
        self.num_passed_on = 0
        self.suspicion = Suspicion(2)
        self.suspicion.answer = self

    def go_to(self, endpoint: Endpoint) -> None:
        self.suspicion.enter(endpoint)


@pytest.fixture
async def engines():
    async with EngineClient("unix:/nowhere/e.sock") as client:
        yield Endpoints([client])


def die(engines: Endpoints, life: str, *askers: Asker) -> list[int]:
    """A life ends with these requests in it; what each is told."""
    [endpoint] = engines.all
    for asker in askers:
        if asker.suspicion not in endpoint.suspects:
            asker.go_to(endpoint)
    endpoint.in_flight = len(askers)
    told = []
    for asker in askers:
        is_alone = asker.suspicion.is_alone(endpoint, life)
        asker.suspicion.leave(endpoint)
        endpoint.in_flight -= 1
        told.append(asker.suspicion.blame(engines, life, is_alone=is_alone))
    assert not endpoint.suspects
    return told


async def test_two_deaths_with_one_request_inside_are_its_fault(engines) -> None:
    one = Asker()
    assert [die(engines, life, one) for life in "ab"] == [[0], [2]]


async def test_of_several_that_met_with_the_same_deaths_nobody_is_blamed(engines) -> None:
    some = [Asker() for _ in range(8)]
    assert [die(engines, life, *some) for life in "ab"] == [[0] * 8] * 2


async def test_who_met_with_two_deaths_in_different_company_is_not_blamed(engines) -> None:
    one = Asker()
    assert die(engines, "a", one, Asker(), Asker()) == [0] * 3
    assert die(engines, "b", one, Asker(), Asker()) == [0] * 3


async def test_who_met_with_one_of_two_deaths_in_company_is_tried_first(engines) -> None:
    one = Asker()
    assert [die(engines, "a", one, Asker()), die(engines, "b", one)] == [[0, 0], [0]]
    assert die(engines, "c", one, Asker()) == [3, 0]


async def test_they_are_tried_one_by_one_and_the_cause_is_found(engines) -> None:
    some = [Asker() for _ in range(3)]
    for life in "ab":
        die(engines, life, *some)
    [endpoint] = engines.all
    first, second, _ = some
    assert not first.suspicion.must_wait_for(endpoint)
    first.go_to(endpoint)
    assert second.suspicion.must_wait_for(endpoint)
    first.num_passed_on += PROGRESS_TOKENS
    assert not second.suspicion.must_wait_for(endpoint)
    second.go_to(endpoint)
    # Whose answer goes on beside the one that is tried has proved what it had to.
    assert die(engines, "c", first, second) == [0, 3]


async def test_an_answer_that_goes_on_between_deaths_is_not_their_cause(engines) -> None:
    one = Asker()
    [endpoint] = engines.all
    for life in "abcd":
        one.go_to(endpoint)
        one.num_passed_on += PROGRESS_TOKENS
        assert one.suspicion.blame(engines, life, is_alone=True) == 0


async def test_a_life_that_is_still_there_was_only_cut_off(engines) -> None:
    one = Asker()
    engines.all[0].heard(pb.Load(state=pb.ENGINE_STATE_READY, engine_lifetime_id="a"))
    assert [die(engines, life, one) for life in "aab"] == [[0]] * 3
