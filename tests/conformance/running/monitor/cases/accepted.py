"""Answers to requests that have none but a refusal."""

from __future__ import annotations

from enginewire import v1 as pb
from tests.conformance.running.monitor.cases.register import breaks
from tests.conformance.running.monitor.made import generated, outputs, request

for _name, _wrong, _asked in (
    ("prompts_are_needed", "no prompt", {"token_ids": []}),
    ("ids_are_checked", "a stop id beyond the vocabulary", {"stop_token_ids": [128]}),
    ("ids_are_checked", "a bias beyond the vocabulary", {"logit_bias": [pb.LogitBias(token_id=999)]}),
    ("numbers_are_checked", "no number", {"temperature": float("nan")}),
    ("ranges_are_checked", "an empty nucleus", {"top_p": 0.0}),
    ("the_number_of_choices_is_checked", "more than there may be", {"n": 129}),
    ("the_number_of_alternatives_is_checked", "more than there may be", {"logprobs": 21}),
):
    breaks(_name, _wrong)(lambda asked=_asked: generated(request(**asked), outputs(request())))  # type: ignore[misc]
