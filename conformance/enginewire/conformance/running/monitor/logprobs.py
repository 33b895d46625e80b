"""Tables of log-probabilities: one row per token, each a ranking, and their sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Answer
from enginewire.conformance.running.monitor.invariant import of_answers
from enginewire.conformance.wire.violation import Violation, expect, expect_equal

IMPOSSIBLE: Final = -1e30

ABOVE_ZERO: Final = 1e-3
"""By which rounding may lift a logarithm above 0, or a sum of probabilities above 1."""

SAME: Final = 1e-4
"""Between two values of one table that stand for the same probability."""

ROWS: Final = ("LOG-01", "LOG-03", "LOG-04")


@of_answers("LOG-01", needs=("STR-03",))
def each_token_has_a_row(answer: Answer) -> None:
    """In its own message, also where log-probabilities of some ids alone were asked for."""
    options = answer.body.output_options
    if not (options.HasField("logprobs") or options.logprob_token_ids):
        return
    for output in answer.outputs:
        rows, tokens = len(output.logprobs.token_logprobs), len(output.token_ids)
        expect_equal(rows, tokens, "an output has not one row of log-probabilities per token")
        ranks = output.logprobs.token_ranks
        expect(len(ranks) in (0, tokens), "token_ranks has not one entry per row", seen=len(ranks))


@of_answers("LOG-08")
def nobody_gets_rows_unasked(answer: Answer) -> None:
    """Of tokens, and of the prompt."""
    options = answer.body.output_options
    if options.HasField("logprobs") or options.logprob_token_ids:
        return
    expect(not answer.scored, "log-probabilities come that nobody asked for")
    for output in answer.outputs:
        expect(not output.HasField("cum_log_probs"), "cum_log_probs comes, and nobody asked for it")


@of_answers("LOG-03")
def values_are_logarithms(answer: Answer) -> None:
    """Every value of every table."""
    for table in _tables(answer):
        for values in (table.token_logprobs, table.top_logprobs, table.selected_logprobs):
            _are_logarithms(values[:])


def _are_logarithms(values: Sequence[float]) -> None:
    # The least and the greatest are enough, but a NaN hides from both.
    if values:
        possible = min(values) >= IMPOSSIBLE * 1.001 and max(values) <= ABOVE_ZERO
        possible = possible and not math.isnan(math.fsum(values))
        expect(possible, "no log-probability", expected="at most 0, at least -1e30", seen=values[:16])


@of_answers("LOG-04", needs=("LOG-01", "LOG-03"))
def alternatives_are_a_ranking(answer: Answer) -> None:
    """As many as the table says and none beyond what was asked for, each once, best first."""
    options = answer.body.output_options
    for output, rows in zip(answer.scored, answer.rows, strict=True):
        _has_columns(output.logprobs, len(output.token_ids), options.logprobs)
        _has_selected(output.logprobs, len(output.token_ids), len(options.logprob_token_ids))
        for _, _, ids, values in rows if output.logprobs.top_n > 1 else ():
            expect_equal(len(set(ids)), len(ids), "an alternative is listed twice in a row")
            falling = all(first >= second - SAME for first, second in pairwise(values))
            expect(falling, "alternatives are not ordered", expected="most probable first", seen=values)


def _has_columns(table: pb.Logprobs, rows: int, asked: int) -> None:
    expect(table.top_n <= asked, "more alternatives than were asked for", expected=asked, seen=table.top_n)
    expect(table.top_n or not asked or not rows, "no alternatives, though they were asked for")
    size = rows * table.top_n
    expect_equal(len(table.top_token_ids), size, "top_token_ids has not top_n entries per row")
    expect_equal(len(table.top_logprobs), size, "top_logprobs has not top_n entries per row")


def _has_selected(table: pb.Logprobs, rows: int, asked: int) -> None:
    size = len(table.selected_logprobs)
    expect_equal(size, rows * asked, "selected_logprobs has not one entry per row and id that was asked for")


@of_answers("LOG-02", needs=ROWS)
def values_are_those_of_the_tokens(answer: Answer) -> None:
    """The same as among the alternatives and among the selected ids."""
    selected = list(answer.body.output_options.logprob_token_ids)
    for output, rows in zip(answer.scored, answer.rows, strict=True):
        for number, (token, value, ids, values) in enumerate(rows):
            if token in ids:
                _is_same(token, value, values[ids.index(token)])
            if token in selected:
                place = number * len(selected) + selected.index(token)
                _is_same(token, value, output.logprobs.selected_logprobs[place])


def _is_same(token: int, value: float, among: float) -> None:
    if not math.isclose(value, among, abs_tol=SAME, rel_tol=SAME):
        message = f"token {token} has another value among the others of its row"
        raise Violation(message, expected=f"{among:.6f}", seen=f"{value:.6f}")


@of_answers("LOG-02", needs=ROWS)
def columns_are_in_the_order_of_the_request(answer: Answer) -> None:
    """An id that is selected and an alternative has one value."""
    selected = list(answer.body.output_options.logprob_token_ids)
    for output, rows in zip(answer.scored, answer.rows, strict=True) if selected else ():
        for number, (_, _, ids, values) in enumerate(rows):
            among = dict(zip(ids, values, strict=True))
            columns = output.logprobs.selected_logprobs[number * len(selected) :][: len(selected)]
            for token, value in zip(selected, columns, strict=True):
                _is_same(token, value, among.get(token, value))


@of_answers("LOG-02", needs=ROWS)
def ranks_are_those_of_the_values(answer: Answer) -> None:
    """A rank is 1 or more, and no better than what the alternatives show."""
    for output, rows in zip(answer.scored, answer.rows, strict=True):
        for rank, (_, value, _, values) in zip(output.logprobs.token_ranks, rows, strict=False):
            better = sum(other > value + SAME for other in values)
            expect(rank > better, "a token's rank is better than its value", expected=better + 1, seen=rank)


@of_answers("LOG-05", needs=(*ROWS, "LOG-02"))
def greedy_tokens_are_the_first(answer: Answer) -> None:
    """Or as probable as the first, where nothing but the model decides."""
    if not _is_plainly_greedy(answer):
        return
    for rows in answer.rows:
        for token, value, ids, values in rows:
            best = not ids or value >= values[0] - SAME * max(1.0, abs(values[0]))
            expect(best, "a greedy token is no first alternative", expected=ids[:1], seen=token)


@of_answers("LOG-06", needs=ROWS)
def probabilities_are_shares(answer: Answer) -> None:
    """Of each row."""
    for rows in answer.rows:
        for _, _, _, values in rows:
            if (total := sum(map(math.exp, values))) > 1 + ABOVE_ZERO:
                message = "the probabilities of a row add up to more than 1"
                raise Violation(message, expected="at most 1", seen=f"{total:.4f}")


@of_answers("LOG-07")
def prompt_rows_are_of_the_prompt(answer: Answer) -> None:
    """One row fewer than it has tokens, on the first output of choice 0 and nowhere else."""
    asked = answer.body.output_options.HasField("prompt_logprobs")
    first = answer.choices[0].outputs[:1] if 0 in answer.choices else []
    for output in answer.outputs:
        if output.HasField("prompt_logprobs"):
            expect(asked, "prompt_logprobs come, and nobody asked for them")
            expect(output is first[0], "prompt_logprobs are not on the first output of choice 0")
            rows = len(output.prompt_logprobs.logprobs.token_logprobs)
            if answer.prompt_tokens is not None:
                message = "prompt_logprobs has not one row fewer than the prompt has tokens"
                expect_equal(rows, answer.prompt_tokens - 1, message)
                top = answer.body.output_options.prompt_logprobs
                _has_columns(output.prompt_logprobs.logprobs, rows, top)
            ranks = output.prompt_logprobs.logprobs.token_ranks
            expect(all(ranks), "the rank of a token of the prompt is 0", expected="1 or more", seen=ranks[:4])


@of_answers("LOG-07", needs=("STR-02", "STR-03"))
def prompt_rows_are_there(answer: Answer) -> None:
    """For whoever asks for them without `resume`, cached or not."""
    asked = answer.body.output_options.HasField("prompt_logprobs") and (answer.prompt_tokens or 0) > 1
    first = answer.choices[0].outputs[:1] if 0 in answer.choices else []
    if asked and first and first[0].token_ids and not answer.body.HasField("resume"):
        there = first[0].HasField("prompt_logprobs")
        expect(there, "prompt_logprobs do not come, though they were asked for")


@of_answers("LOG-10", needs=("LOG-01", "LOG-03", "STR-06", "STR-03"))
def sums_run(answer: Answer) -> None:
    """Over all outputs of a choice."""
    if not answer.resumed:
        _sums_run(answer)


@of_answers("RES-07", needs=("LOG-01", "LOG-03", "STR-06", "STR-03"))
def sums_of_resumed_choices_run(answer: Answer) -> None:
    """From the sum that was handed in."""
    if answer.resumed:
        _sums_run(answer)


def _sums_run(answer: Answer) -> None:
    if not answer.body.output_options.HasField("logprobs"):
        return
    for index, choice in answer.choices.items():
        resumed = answer.resumed.get(index)
        if resumed and resumed.generated_token_ids and not resumed.HasField("cum_log_probs"):
            continue
        total = resumed.cum_log_probs if resumed else 0.0
        for output in choice.outputs:
            total += math.fsum(output.logprobs.token_logprobs)
            told = output.cum_log_probs
            is_close = math.isclose(told, total, rel_tol=SAME, abs_tol=ABOVE_ZERO)
            if output.token_ids and total > IMPOSSIBLE and not is_close:
                message = f"cum_log_probs of choice {index} is not the running sum"
                raise Violation(message, expected=f"{total:.4f}", seen=f"{told:.4f}")


def _tables(answer: Answer) -> Iterator[pb.Logprobs]:
    yield from (output.logprobs for output in answer.scored)
    for output in answer.outputs:
        if output.HasField("prompt_logprobs"):
            yield output.prompt_logprobs.logprobs


def _is_plainly_greedy(answer: Answer) -> bool:
    """Temperature 0, and nothing else that changes which token comes."""
    options, conditions = answer.body.sampling_options, answer.body.stop_conditions
    changes = (
        options.presence_penalty,
        options.frequency_penalty,
        options.HasField("guided_decoding"),
        options.logit_bias,
        options.allowed_token_ids,
        options.bad_words_token_ids,
        options.use_beam_search,
        options.best_of > max(options.n, 1),
        conditions.min_tokens,
        conditions.HasField("max_thinking_tokens"),
    )
    penalty = options.repetition_penalty
    if not options.HasField("repetition_penalty"):
        penalty = answer.config.capabilities.default_sampling.repetition_penalty or 1.0
    is_greedy = options.HasField("temperature") and options.temperature == 0
    return answer.is_known and is_greedy and penalty == 1.0 and not any(changes)
