"""Answers to requests that have none but a refusal."""

from __future__ import annotations

from enginewire import v1 as pb
from tests.conformance.running.monitor.cases.register import breaks
from tests.conformance.running.monitor.made import generated, outputs, request

BEGUN = pb.ResumedChoice(generated_token_ids=[8])
LONG = pb.ResumedChoice(generated_token_ids=[8] * 5)
DONE = pb.ResumedChoice(generated_token_ids=[8], finished=True)

for _name, _wrong, _asked in (
    ("prompts_are_needed", "no prompt", {"token_ids": []}),
    ("ids_are_checked", "a stop id beyond the vocabulary", {"stop_token_ids": [128]}),
    ("ids_are_checked", "a bias beyond the vocabulary", {"logit_bias": [pb.LogitBias(token_id=999)]}),
    ("numbers_are_checked", "no number", {"temperature": float("nan")}),
    ("ranges_are_checked", "an empty nucleus", {"top_p": 0.0}),
    ("the_number_of_choices_is_checked", "more than there may be", {"n": 129}),
    ("the_number_of_alternatives_is_checked", "more than there may be", {"logprobs": 21}),
    ("ids_are_names", "no id", {"request_id": ""}),
    ("ids_are_names", "a blank in it", {"request_id": "r 1"}),
    ("ids_are_names", "one character too many", {"request_id": "x" * 129}),
    ("models_are_served", "another name", {"model": "another"}),
    ("some_tokens_are_asked_for", "none", {"max_tokens": 0}),
    ("minimum_and_maximum_agree", "one more", {"min_tokens": 5}),
    ("prompts_leave_room", "as long as the window", {"token_ids": [5] * 64}),
    ("prompts_leave_room_for_the_minimum", "one too few", {"token_ids": [5] * 60, "min_tokens": 5}),
    ("lists_are_bounded", "one too many", {"stop_token_ids_hidden": [5] * 257}),
    ("lists_are_bounded", "one bias too many", {"logit_bias": [pb.LogitBias(token_id=5)] * 1025}),
    ("only_what_is_offered_is_used", "a seed", {"seed": 0}),
    ("only_what_is_offered_is_used", "a stop string", {"stop": ["x"]}),
    ("resumed_choices_are_named_once", "twice", {"resume": pb.Resume(choices=[BEGUN, BEGUN])}),
    ("resumed_choices_are_named_once", "another", {"resume": pb.Resume(choices=[pb.ResumedChoice(index=1)])}),
    ("resumed_choices_are_named_once", "nothing to do", {"resume": pb.Resume(choices=[DONE])}),
    ("resumed_choices_are_named_once", "too many", {"resume": pb.Resume(choices=[LONG])}),
):
    breaks(_name, _wrong)(lambda asked=_asked: generated(request(**asked), outputs(request())))  # type: ignore[misc]
