"""Answers with events or roles that nobody asked for."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.running.monitor.cases.register import NOTE, Broken, breaks, last, output
from tests.conformance.running.monitor.made import changed, generated, outputs, request


@breaks("events_are_asked_for", "nobody asked")
def _() -> Exchange:
    return generated(request(), [NOTE, *outputs(request())])


@breaks("events_come_before_the_end", "behind it")
def _() -> Exchange:
    one = request(annotations=["made.note"])
    return generated(one, [*outputs(one), NOTE])


@breaks("known_annotations_are_answered", "no event")
def _() -> Exchange:
    one = request(annotations=["made.note:x", "other"])
    return generated(one, outputs(one))


@breaks("prefill_answers_are_one_output", "four of them")
def _() -> Broken:
    return generated(request(), outputs(request())), changed(role=pb.ENGINE_ROLE_PREFILL)


output(
    "hand_offs_are_of_prefills_that_worked",
    "it failed",
    last(lambda one: one.prefill_handoff.SetInParent()),
    reasons=(pb.FINISH_REASON_ERROR,),
)
output(
    "probes_generate",
    "nothing",
    lambda made: made[0].ClearField("token_ids"),
    tokens=((11,),),
    is_probe=True,
    max_tokens=None,
)
