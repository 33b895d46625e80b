"""Sessions: found while they are used, forgotten when they are not, never too many."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from enginewire.backend.engines.choice.routing_hints import Session
from enginewire.backend.engines.choice.sessions import Sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def session(name: bytes = b"s", timeout: float = 10.0) -> Session:
    return Session(name, timeout)


def test_a_session_lasts_as_long_as_it_is_used() -> None:
    clock = Clock()
    sessions: Sessions[str] = Sessions(clock=clock)
    assert sessions.find(session()) is None
    sessions.keep(session(), "a")
    for _ in range(3):
        clock.now += 9
        assert sessions.find(session()) == "a"
        sessions.end(session())
    clock.now += 10
    assert sessions.find(session()) is None


def test_a_closed_session_is_forgotten_when_its_request_has_ended() -> None:
    sessions: Sessions[str] = Sessions(clock=Clock())
    closing = replace(session(), closes=True)
    sessions.keep(session(), "a")
    assert sessions.find(closing) == "a"
    sessions.keep(closing, "a")
    sessions.end(closing)
    assert sessions.find(session()) is None
    sessions.end(session())
    assert len(sessions) == 0


def test_opening_a_session_begins_anew() -> None:
    sessions: Sessions[str] = Sessions(clock=Clock())
    sessions.keep(session(), "a")
    assert sessions.find(replace(session(), opens=True)) is None
    sessions.keep(replace(session(), opens=True), "b")
    assert sessions.find(session()) == "b"


@pytest.mark.parametrize("timeout", [0.0, -1.0, -math.inf, math.nan])
def test_a_session_without_any_time_is_never_found(timeout: float) -> None:
    sessions: Sessions[str] = Sessions(clock=Clock())
    sessions.keep(session(timeout=timeout), "a")
    assert sessions.find(session()) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1.0, 100.0, math.inf])), max_size=60))
def test_no_more_sessions_are_kept_than_allowed_and_never_a_wrong_one(uses: list[tuple[int, float]]) -> None:
    clock = Clock()
    sessions: Sessions[int] = Sessions(max_sessions=4, clock=clock)
    last: dict[int, int] = {}
    for number, (name, timeout) in enumerate(uses):
        clock.now += 0.5
        found = sessions.find(session(bytes([name])))
        assert found in (None, last.get(name))
        sessions.keep(session(bytes([name]), timeout), number)
        last[name] = number
        assert sessions.find(session(bytes([name]))) == number
        assert len(sessions) <= 4
