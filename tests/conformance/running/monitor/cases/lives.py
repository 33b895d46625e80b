"""Answers of another life than the one that is judged."""

from __future__ import annotations

from enginewire.conformance.running.monitor.calls import LIFETIME_KEY
from tests.conformance.running.monitor.cases.frames import ONE
from tests.conformance.running.monitor.cases.load import load, told
from tests.conformance.running.monitor.cases.register import Broken, breaks, of_life
from tests.conformance.running.monitor.made import LIFE, frame, frames, generated, outputs, request


@breaks("the_server_lives_on", "an answer of another life")
def _() -> Broken:
    return generated(request(), outputs(request())), of_life("another")


@breaks("the_server_lives_on", "a load of another life")
def _() -> Broken:
    return told(load(engine_lifetime_id="life-2")), of_life(LIFE)


@breaks("the_server_lives_on", "a handle that was accepted in another life")
def _() -> Broken:
    return frames(ONE, [frame(1, *outputs(request()), accepted="r-1")]), of_life("another")


@breaks("the_server_lives_on", "metadata of another life")
def _() -> Broken:
    exchange = generated(request(), outputs(request()))
    exchange.initial_metadata = ((LIFETIME_KEY, "life-2"),)
    return exchange, of_life(LIFE)
