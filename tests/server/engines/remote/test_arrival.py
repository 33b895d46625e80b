from __future__ import annotations

import logging

import pytest

from enginewire.server.engines.remote import arrival
from enginewire.server.engines.remote.arrival import NotYet, first_answer
from enginewire.server.engines.remote.watch import NoUpstream


class Late:
    """Says that it loads, so many times, and then what it is there to say."""

    def __init__(self, *, num_refusals: int) -> None:
        self.num_refusals = num_refusals
        self.num_asked = 0

    async def ask(self) -> str:
        self.num_asked += 1
        if self.num_asked <= self.num_refusals:
            raise NotYet(f"it loads, {self.num_asked}")
        return "here I am"


async def wait_for(late: Late, patience: float) -> str:
    return await first_answer(late.ask, whose="engine", target="unix:/e", patience=patience)


async def test_the_wait_ends_with_the_first_answer_and_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "FIRST_PAUSE", 0.0)
    with caplog.at_level(logging.INFO):
        assert await wait_for(Late(num_refusals=20), patience=60.0) == "here I am"
    assert caplog.messages == ["waiting for the engine at unix:/e"]


async def test_whoever_is_there_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert await wait_for(Late(num_refusals=0), patience=0.0) == "here I am"
    assert not caplog.messages


async def test_without_patience_it_says_what_came_last() -> None:
    late = Late(num_refusals=1)
    with pytest.raises(NoUpstream, match="no engine has answered within 0 s, the last time it loads, 1"):
        await wait_for(late, patience=0.0)
    assert late.num_asked == 1
