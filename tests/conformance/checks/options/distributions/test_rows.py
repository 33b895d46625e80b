"""Tables of log-probabilities are cut into rows."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.conformance.checks.options.distributions.rows import Row, rows_of
from enginewire.conformance.wire.violation import Violation


def test_columns_become_rows() -> None:
    table = pb.Logprobs(
        token_logprobs=[-1.0, -2.0],
        top_n=2,
        top_token_ids=[5, 6, 7, 8],
        top_logprobs=[-1.0, -1.5, -0.5, -2.0],
        selected_logprobs=[-3.0, -4.0, -5.0, -6.0, -7.0, -8.0],
    )
    rows = list(rows_of([pb.LLMEngineOutput(token_ids=[5, 8], logprobs=table), pb.LLMEngineOutput()]))
    assert rows == [
        Row(5, -1.0, [5, 6], [-1.0, -1.5], [-3.0, -4.0, -5.0]),
        Row(8, -2.0, [7, 8], [-0.5, -2.0], [-6.0, -7.0, -8.0]),
    ]


def test_a_token_without_a_row_is_a_violation() -> None:
    with pytest.raises(Violation, match="one row per token"):
        list(rows_of([pb.LLMEngineOutput(token_ids=[1])]))
