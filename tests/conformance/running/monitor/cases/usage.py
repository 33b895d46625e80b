"""Answers that count their tokens wrongly."""

from __future__ import annotations

from enginewire import v1 as pb
from tests.conformance.running.monitor.cases.register import CANCELLED, RESUMED, Change, last, output


def usage(name: str, value: int) -> Change:
    """One number of the usage is another one."""
    return last(lambda one: setattr(one.completion_usage, name, value))


def fewer(made: list[pb.LLMEngineOutput]) -> None:
    """One token is not counted."""
    made[-1].completion_usage.completion_tokens -= 1
    made[-1].completion_usage.total_tokens -= 1


output("usage_is_on_the_last_terminal", "nowhere", last(lambda one: one.ClearField("completion_usage")))
output(
    "usage_is_on_the_last_terminal",
    "on both",
    lambda made: made[-2].completion_usage.CopyFrom(made[-1].completion_usage),
    n=2,
)
output("usage_waits_for_the_end", "on the first", lambda made: made[0].completion_usage.SetInParent())
output(
    "aborted_answers_have_usage",
    "none",
    last(lambda one: one.ClearField("completion_usage")),
    reasons=(CANCELLED,),
)
output("aborted_answers_have_usage", "of less", fewer, reasons=(CANCELLED,))
output(
    "aborted_answers_have_usage",
    "of another prompt",
    usage("prompt_tokens", 9),
    reasons=(CANCELLED, CANCELLED),
    n=2,
)
output("completion_tokens_are_counted", "without the last", fewer)
output("tokens_of_all_choices_are_counted", "without the last", fewer, n=2)
output(
    "tokens_handed_in_are_counted",
    "without them",
    usage("completion_tokens", 2),
    tokens=((13, 14),),
    resume=RESUMED,
)
output("prompt_tokens_are_counted", "without those that were cached", usage("prompt_tokens", 2))
output("the_total_is_the_sum", "another", usage("total_tokens", 1))
output(
    "cached_tokens_are_of_the_prompt",
    "more",
    last(lambda one: setattr(one.completion_usage.prompt_tokens_details, "cached_tokens", 4)),
)
output(
    "cached_tokens_are_of_the_prompt",
    "past the cache",
    last(lambda one: setattr(one.completion_usage.prompt_tokens_details, "cached_tokens", 2)),
    bypass_prefix_cache=True,
)
