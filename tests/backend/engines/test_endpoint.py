"""What the log says while an engine does not answer."""

from __future__ import annotations

import pytest

from enginewire.backend.engines.endpoint import MOST_REASONS, Outage


def test_each_reason_of_an_outage_is_told_once_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    outage = Outage("e:1")
    outage.goes_on("not there yet")
    outage.ends()
    assert caplog.messages == []
    for _ in range(2):
        for why in ("refused", "refused", "no certificate", "refused"):
            outage.goes_on(why)
        outage.ends()
        outage.ends()
    refused, closed = (f"the engine at e:1 does not answer: {why}" for why in ("refused", "no certificate"))
    assert caplog.messages == [refused, closed, "the engine at e:1 answers again"] * 2


def test_words_that_change_all_the_time_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("e:1")
    outage.ends()
    for number in range(100):
        outage.goes_on(f"refused for the {number}th time")
    assert len(caplog.messages) == MOST_REASONS
