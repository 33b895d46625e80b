"""Hand-offs and probes: answers that only some engines, or some requests, have."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.monitor.facts import CUT, Answer
from enginewire.conformance.monitor.invariant import of_answers
from enginewire.conformance.wire.violation import expect, expect_equal


@of_answers("DIS-02", needs=("STR-02",))
def prefill_answers_are_one_output(answer: Answer) -> None:
    """With at most one token and what the other half needs."""
    is_prefill = answer.config.role == pb.ENGINE_ROLE_PREFILL and not answer.body.is_probe
    if not (is_prefill and answer.is_ok) or any(output.finish_reason in CUT for output in answer.outputs):
        return
    expect_equal(len(answer.outputs), 1, "the answer of a prefill engine is not one output")
    (output,) = answer.outputs
    expect(len(output.token_ids) <= 1, "a prefill answer has more than one token", seen=len(output.token_ids))
    expect(output.prefill_handoff.params, "a prefill answer has no hand-off, or an empty one")


@of_answers("DIS-06")
def hand_offs_are_of_prefills_that_worked(answer: Answer) -> None:
    """On a terminal output, and on none that says that it failed."""
    for output in answer.outputs:
        if output.HasField("prefill_handoff"):
            worked = output.finish_reason and output.finish_reason not in CUT
            expect(worked, "a hand-off is on an output that ends nothing, or that failed")


@of_answers("PRB-02", needs=("STR-02",))
def probes_generate(answer: Answer) -> None:
    """A token, or on a prefill engine a hand-off."""
    if answer.body.is_probe and answer.is_ok and not any(out.finish_reason in CUT for out in answer.outputs):
        made = any(output.token_ids or output.HasField("prefill_handoff") for output in answer.outputs)
        expect(made, "a probe was served without a generated token")
