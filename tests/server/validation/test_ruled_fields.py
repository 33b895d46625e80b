"""Which fields an engine must have a capability for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES
from enginewire.server.failures import EngineError, Unsupported
from enginewire.server.validation.generate import check_generate
from enginewire.server.validation.ruled_fields import DECIDED_BY_OTHERS
from tests.long import examples
from tests.server.validation.random_requests import random_request
from tests.server.validation.requests_to_check import Change, bias, check, config, fields

GATED = {path for path, rule in FIELD_RULES.items() if rule.capability} - DECIDED_BY_OTHERS
USES = {
    "prompt_embeds": fields(token_ids=[], prompt_embeds__shape=[1, 1]),
    "resume": fields(resume__attempt=1),
    "stop_conditions.max_thinking_tokens": fields(stop_conditions__max_thinking_tokens=0),
    "sampling_options.seed": fields(sampling_options__seed=0),
    "sampling_options.n": fields(sampling_options__n=2),
    "sampling_options.use_beam_search": fields(sampling_options__use_beam_search=True),
    "sampling_options.length_penalty": fields(sampling_options__length_penalty=2.0),
    "sampling_options.min_p": fields(sampling_options__min_p=0.1),
    "sampling_options.presence_penalty": fields(sampling_options__presence_penalty=0.1),
    "sampling_options.frequency_penalty": fields(sampling_options__frequency_penalty=0.1),
    "sampling_options.repetition_penalty": fields(sampling_options__repetition_penalty=1.1),
    "sampling_options.logit_bias": fields(sampling_options__logit_bias=bias(1)),
    "sampling_options.allowed_token_ids": fields(sampling_options__allowed_token_ids=[1]),
    "sampling_options.bad_words_token_ids": fields(
        sampling_options__bad_words_token_ids=[pb.TokenSequence(token_ids=[1])]
    ),
    "sampling_options.guided_decoding": fields(sampling_options__guided_decoding__regex="a"),
    "output_options.logprobs": fields(output_options__logprobs=0),
    "output_options.prompt_logprobs": fields(output_options__prompt_logprobs=0),
    "output_options.logprob_token_ids": fields(output_options__logprob_token_ids=[1]),
    "multi_modal_data": fields(multi_modal_data=[pb.MultiModalPart(part_type="image_url")]),
    "mm_processor_kwargs": fields(mm_processor_kwargs=b"{}"),
    "routing.lora_name": fields(routing__lora_name="a"),
    "routing.priority": fields(routing__priority=1),
    "routing.priority_jump": fields(routing__priority_jump=1.0),
    "stop_conditions.stop": fields(stop_conditions__stop=["a"]),
    "sampling_options.include_stop_str_in_output": fields(sampling_options__include_stop_str_in_output=False),
    "output_options.skip_special_tokens": fields(output_options__skip_special_tokens=True),
    "output_options.formatted_prompt": fields(output_options__formatted_prompt=True),
    "output_options.return_tokens_as_token_ids": fields(output_options__return_tokens_as_token_ids=True),
}


@pytest.mark.parametrize("path", sorted(GATED))
def test_a_field_of_a_capability_that_is_not_advertised_is_unsupported(path: str) -> None:
    with pytest.raises(Unsupported) as caught:
        check(USES[path], config(pb.Capabilities()))
    assert caught.value.field == path
    assert str(caught.value).startswith(f"{path}: ")


NEUTRAL = [
    fields(sampling_options__n=1, sampling_options__best_of=1),
    fields(sampling_options__use_beam_search=False, sampling_options__length_penalty=1.0),
    fields(sampling_options__min_p=0.0, sampling_options__presence_penalty=0.0),
    fields(sampling_options__frequency_penalty=0.0, sampling_options__repetition_penalty=1.0),
    fields(routing__priority=0, routing__priority_jump=0.0, routing__lora_name=""),
]


@pytest.mark.parametrize("change", NEUTRAL)
def test_a_value_that_changes_nothing_needs_no_capability(change: Change) -> None:
    check(change, config(pb.Capabilities()))


def test_best_of_above_n_needs_its_capability() -> None:
    with pytest.raises(Unsupported) as caught:
        check(fields(sampling_options__best_of=2), config(pb.Capabilities()))
    assert caught.value.field == "sampling_options.best_of"


def test_a_guide_of_a_kind_that_is_not_advertised_is_unsupported() -> None:
    engine = config(pb.Capabilities(guided_modes=[pb.GUIDED_MODE_REGEX]))
    check(fields(sampling_options__guided_decoding__regex="a"), engine)
    with pytest.raises(Unsupported) as caught:
        check(fields(sampling_options__guided_decoding__json_object=True), engine)
    assert caught.value.field == "sampling_options.guided_decoding.json_object"


def test_a_part_type_that_is_not_advertised_is_unsupported() -> None:
    with pytest.raises(Unsupported) as caught:
        check(fields(multi_modal_data=[pb.MultiModalPart(part_type="audio_url")]))
    assert caught.value.field == "multi_modal_data[0].part_type"


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(list(USES)), st.integers(0, 2**64))
def test_nothing_unsupported_slips_through_among_other_fields(path: str, seed: int) -> None:
    request = random_request(random.Random(seed))
    USES[path](request)
    with pytest.raises(EngineError):
        check_generate(pb.GenerateRequest(request_id="r", request=request), config(pb.Capabilities()))
