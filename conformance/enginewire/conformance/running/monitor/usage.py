"""What the usage of an answer says, and where."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Answer
from enginewire.conformance.running.monitor.invariant import of_answers
from enginewire.conformance.wire.violation import expect, expect_equal

UINT32_MAX = 2**32 - 1
WHOLE = ("STR-02", "STR-03", "STR-05", "STR-06", "USE-04", "USE-05")


@of_answers("USE-04", needs=("STR-02", "STR-03"))
def usage_is_on_the_last_terminal(answer: Answer) -> None:
    """There and nowhere else."""
    last = answer.terminals[-1] if answer.is_ok and answer.terminals else None
    for output in answer.outputs:
        message = "completion_usage is on an output that is not the last terminal"
        expect(output is last or not output.HasField("completion_usage"), message) if last else None
    if last is not None and not _is_aborted(answer):
        expect(last.HasField("completion_usage"), "the last terminal output has no completion_usage")


@of_answers("USE-04", needs=("STR-02", "STR-03"))
def usage_waits_for_the_end(answer: Answer) -> None:
    """Also where the end was not seen: what goes on has none."""
    for output in answer.outputs:
        message = "completion_usage is on an output without a finish_reason"
        expect(output.finish_reason or not output.HasField("completion_usage"), message)


@of_answers("USE-05", needs=("STR-02", "STR-03", "STR-05", "STR-06"))
def aborted_answers_have_usage(answer: Answer) -> None:
    """On the last terminal, of what was sent."""
    if answer.is_ok and answer.terminals and _is_aborted(answer):
        usage = _usage(answer)
        expect(usage, "the last terminal output of an aborted request has no completion_usage")
        seen = usage.completion_tokens if usage else 0
        expect_equal(seen, _sent(answer), "completion_tokens of an aborted request are not those sent")
        if answer.count > 1:
            _counts_prompt(answer)


@of_answers("USE-01", needs=WHOLE)
def completion_tokens_are_counted(answer: Answer) -> None:
    """The ids of one choice."""
    if answer.count == 1 and not answer.resumed and not _is_aborted(answer):
        _counts_completion(answer)


@of_answers("SEQ-03", needs=WHOLE)
def tokens_of_all_choices_are_counted(answer: Answer) -> None:
    """And the prompt once."""
    if answer.count > 1 and not answer.resumed and not _is_aborted(answer):
        _counts_prompt(answer)
        _counts_completion(answer)


@of_answers("RES-04", needs=WHOLE)
def tokens_handed_in_are_counted(answer: Answer) -> None:
    """As output of the request that goes on."""
    if answer.resumed and not _is_aborted(answer):
        _counts_completion(answer)


@of_answers("USE-02", needs=WHOLE)
def prompt_tokens_are_counted(answer: Answer) -> None:
    """Those of the request, however many of them were cached or computed before."""
    if answer.count == 1:
        _counts_prompt(answer)


@of_answers("USE-03", needs=WHOLE)
def the_total_is_the_sum(answer: Answer) -> None:
    """Of what the usage itself says."""
    if usage := _usage(answer):
        total = min(usage.prompt_tokens + usage.completion_tokens, UINT32_MAX)
        expect_equal(usage.total_tokens, total, "total_tokens is no sum")


@of_answers("USE-06", needs=WHOLE)
def cached_tokens_are_of_the_prompt(answer: Answer) -> None:
    """At most all of them, and none past the cache."""
    usage = _usage(answer) or pb.CompletionUsage()
    cached, prompt = usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens
    expect(cached <= prompt, "more tokens are cached than the prompt has", expected=prompt, seen=cached)
    message = "bypass_prefix_cache does not bypass it"
    expect(not (answer.body.bypass_prefix_cache and cached), message, expected=0, seen=cached)


def _counts_prompt(answer: Answer) -> None:
    usage = _usage(answer)
    if usage and answer.prompt_tokens is not None:
        message = "prompt_tokens is not the number of tokens of the prompt"
        expect_equal(usage.prompt_tokens, answer.prompt_tokens, message)


def _counts_completion(answer: Answer) -> None:
    usage = _usage(answer)
    # The token beside a hand-off is informative.
    if usage and not any(output.HasField("prefill_handoff") for output in answer.outputs):
        message = "completion_tokens is not the number of ids sent"
        expect_equal(usage.completion_tokens, _sent(answer), message)


def _sent(answer: Answer) -> int:
    handed_in = sum(len(choice.generated_token_ids) for choice in answer.resumed.values())
    return handed_in + len(answer.token_ids)


def _usage(answer: Answer) -> pb.CompletionUsage | None:
    last = answer.terminals[-1] if answer.is_ok and answer.terminals else None
    return last.completion_usage if last and last.HasField("completion_usage") else None


def _is_aborted(answer: Answer) -> bool:
    return any(output.finish_reason == pb.FINISH_REASON_CANCELLED for output in answer.terminals)
