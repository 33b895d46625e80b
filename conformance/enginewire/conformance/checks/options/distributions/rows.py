"""Tables of log-probabilities as rows: one token with its value, alternatives and selected ids.

Reads outputs; judges only that a table has the columns it announces, without which there are no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from enginewire import v1 as pb
from enginewire.conformance.wire.violation import expect_equal


@dataclass(frozen=True, slots=True)
class Row:
    """One token and what its table says of it. `selected` is in the order of `logprob_token_ids`."""

    token: int
    value: float
    ids: list[int]
    values: list[float]
    selected: list[float]


def rows_of(outputs: Iterable[pb.LLMEngineOutput]) -> Iterator[Row]:
    """The rows of some outputs, in order; a table without a row per token is a Violation."""
    for output in outputs:
        table, count = output.logprobs, len(output.token_ids)
        expect_equal(len(table.token_logprobs), count, "an output has not one row per token")
        width = len(table.selected_logprobs) // count if count else 0
        for number, token in enumerate(output.token_ids):
            top = slice(number * table.top_n, (number + 1) * table.top_n)
            yield Row(
                token,
                table.token_logprobs[number],
                list(table.top_token_ids[top]),
                list(table.top_logprobs[top]),
                list(table.selected_logprobs[number * width : (number + 1) * width]),
            )
