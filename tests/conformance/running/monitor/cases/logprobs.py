"""Answers with log-probabilities that cannot be."""

from __future__ import annotations

from enginewire import v1 as pb
from tests.conformance.running.monitor.cases.register import Change, output, put


def row(name: str, number: int, value: float) -> Change:
    """One value of a table is another one."""
    return lambda made: getattr(made[1].logprobs, name).__setitem__(number, value)


output("each_token_has_a_row", "none", lambda made: made[1].ClearField("logprobs"), logprobs=2)
output("each_token_has_a_row", "none", lambda made: made[1].ClearField("logprobs"), logprob_token_ids=[12])
output("nobody_gets_rows_unasked", "one", lambda made: made[1].logprobs.token_logprobs.append(-1.0))
output("nobody_gets_rows_unasked", "a sum", put("cum_log_probs", -1.0))
output("values_are_logarithms", "above 0", row("token_logprobs", 0, 0.5), logprobs=2)
output("values_are_logarithms", "NaN", row("top_logprobs", 1, float("nan")), logprobs=2)
output(
    "alternatives_are_a_ranking", "a short row", lambda made: made[1].logprobs.top_logprobs.pop(), logprobs=2
)
output("alternatives_are_a_ranking", "twice", row("top_token_ids", 1, 12), logprobs=2)
output("alternatives_are_a_ranking", "unordered", row("top_logprobs", 1, -0.1), logprobs=2)
output(
    "alternatives_are_a_ranking",
    "unasked selected ones",
    lambda made: made[1].logprobs.selected_logprobs.append(-1.0),
    logprobs=2,
)
output("values_are_those_of_the_tokens", "of its neighbour", row("token_logprobs", 0, -0.7), logprobs=2)
output(
    "columns_are_in_the_order_of_the_request",
    "of another id",
    lambda made: [
        made[place].logprobs.selected_logprobs.extend([-9.0] * len(made[place].token_ids))
        for place in range(len(made))
    ],
    logprobs=2,
    logprob_token_ids=[12],
)
output("ranks_are_those_of_the_values", "0", lambda made: made[1].logprobs.token_ranks.append(0), logprobs=2)
output(
    "greedy_tokens_are_the_first",
    "the second",
    lambda made: (
        made[1].logprobs.top_token_ids.__setitem__(slice(None), [99, 98])
        or made[1].logprobs.top_logprobs.__setitem__(slice(None), [-0.2, -3.0])
    ),
    logprobs=2,
)
output(
    "probabilities_are_shares",
    "more than 1",
    lambda made: made[1].logprobs.top_logprobs.__setitem__(slice(None), [-0.5, -0.5]),
    logprobs=2,
)
output("prompt_rows_are_there", "none", lambda made: None, prompt_logprobs=0)
output("prompt_rows_are_of_the_prompt", "unasked", lambda made: made[0].prompt_logprobs.SetInParent())
output(
    "prompt_rows_are_of_the_prompt",
    "too few",
    lambda made: made[0].prompt_logprobs.logprobs.token_logprobs.append(-1.0),
    prompt_logprobs=0,
)
output(
    "prompt_rows_are_of_the_prompt",
    "late",
    lambda made: made[1].prompt_logprobs.logprobs.token_logprobs.extend([-1.0, -1.0]),
    prompt_logprobs=0,
)
output("sums_run", "begins again", put("cum_log_probs", -0.5, 2), logprobs=0)
output(
    "sums_of_resumed_choices_run",
    "from nothing",
    put("cum_log_probs", -0.5, 0),
    tokens=((13, 14),),
    logprobs=0,
    resume=pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[8], cum_log_probs=-7.0)]),
)
