"""No value that a caller can send gets into a batch unchecked, by the shell or by the reader behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import ContextExceeded, EngineError, InvalidRequest, KvExhausted
from enginewire.server.validation.generate import check_preprocessed
from enginewire.torch_engine.folder.generation_config import GenerationDefaults
from enginewire.torch_engine.requests.reader import CLASS_SECONDS, MAX_CLASSES, RequestLimits, RequestReader
from enginewire.torch_engine.requests.sequence import Request
from tests.long import examples
from tests.server.validation.requests_to_check import EVERYTHING

LIMITS = RequestLimits(vocab_size=100, context_length=64, kv_capacity=48)
DEFAULTS = GenerationDefaults(eos_token_ids=(1,), temperature=0.6, top_k=20, repetition_penalty=1.1)


def advertised(limits: RequestLimits) -> pb.EngineConfig:
    """What the shell measures requests by, for an engine that can do everything."""
    return pb.EngineConfig(
        vocab_size=limits.vocab_size,
        context_length=limits.context_length,
        limits=pb.Limits(max_n=limits.max_n, max_prompt_tokens=limits.max_prompt_tokens),
        capabilities=EVERYTHING,
    )


def read(
    defaults: GenerationDefaults = DEFAULTS, limits: RequestLimits = LIMITS, **fields: object
) -> Request:
    message = pb.PreprocessedRequest(**{"token_ids": [5, 6], **fields})
    check_preprocessed(message, advertised(limits))
    return RequestReader(limits, defaults, seed=0).read(message, GenerateContext("r"), now=10.0)


def options(**values: object) -> dict[str, pb.SamplingOptions]:
    return {"sampling_options": pb.SamplingOptions(**values)}


def stops(**values: object) -> dict[str, pb.StopConditions]:
    return {"stop_conditions": pb.StopConditions(**values)}


def matrix(num_tokens: int) -> pb.Tensor:
    return pb.Tensor(data_type=pb.DATA_TYPE_FLOAT32, shape=[num_tokens, 1], data=bytes(4 * num_tokens))


def test_a_resumed_choice_must_fit_the_cache():
    resume = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[1] * 48)])
    with pytest.raises(InvalidRequest) as failure:
        read(resume=resume)
    assert failure.value.field == "resume.choices.generated_token_ids"


def test_what_cannot_fit_is_refused_at_once():
    with pytest.raises(ContextExceeded):
        read(token_ids=[5] * 64)
    with pytest.raises(ContextExceeded):
        read(token_ids=[5] * 49)
    with pytest.raises(KvExhausted):
        read(token_ids=[], prompt_embeds=matrix(49), limits=replace(LIMITS, embedding_width=1))
    with pytest.raises(KvExhausted):
        read(token_ids=[5] * 20, **stops(max_tokens=30))
    assert read(token_ids=[5] * 20, **stops(max_tokens=29)).stop.max_total_tokens == 49
    assert read(token_ids=[5] * 20).stop.max_total_tokens == 49


def test_where_a_window_bounds_what_is_held_only_the_context_ends_a_sequence():
    limits = replace(LIMITS, takes_any_length=True)
    assert limits.max_prompt_tokens == 63
    assert read(limits=limits, token_ids=[5] * 63).stop.max_total_tokens == 64
    assert read(limits=limits, token_ids=[5] * 20, **stops(max_tokens=30)).stop.max_total_tokens == 50
    with pytest.raises(ContextExceeded):
        read(limits=limits, token_ids=[5] * 64)
    with pytest.raises(KvExhausted):
        read(limits=limits, token_ids=[5] * 49, **options(use_beam_search=True))


def test_a_prompt_that_is_handed_over_is_held_as_a_whole_whatever_the_window():
    limits = replace(LIMITS, takes_any_length=True, role="prefill")
    assert limits.max_prompt_tokens == 48
    assert read(limits=limits, token_ids=[5] * 48).hands_over
    with pytest.raises(ContextExceeded):
        read(limits=limits, token_ids=[5] * 49)


def test_unset_sampling_takes_the_defaults_and_zero_is_not_unset():
    unset, zero = read().sampling, read(**options(temperature=0.0, top_k=0, repetition_penalty=1.0)).sampling
    said = read(**options(temperature=0.6, top_k=20, repetition_penalty=1.1)).sampling
    assert replace(unset, seed=0) == replace(said, seed=0)
    assert (zero.temperature, zero.top_k, zero.repetition_penalty) == (0.0, 0, 1.0)
    assert read(**options(top_k=-1)).sampling.top_k == 0
    assert read(**options(temperature=1e-30)).sampling.temperature == 0.01


def test_the_seed_is_the_callers_or_drawn_repeatably():
    assert read(**options(seed=2**64 - 1)).sampling.seed == 2**64 - 1
    assert read(**options(seed=0)).sampling.seed == 0
    assert read().sampling.seed == read().sampling.seed


def test_end_of_sequence_ids_come_from_the_request_or_the_model():
    assert read().stop.eos_token_ids == {1}
    assert read(eos_token_ids=[7]).stop.eos_token_ids == {7}
    assert read(**stops(stop_token_ids_hidden=[8])).stop.eos_token_ids == {1, 8}
    assert read(**stops(ignore_eos=True, stop_token_ids=[8])).stop.ending_ids == {8}


def urgency(now: float = 10.0, **routing: object) -> tuple[float, float, int]:
    request = pb.PreprocessedRequest(token_ids=[1], routing=pb.RoutingHints(**routing))
    return RequestReader(LIMITS, DEFAULTS, seed=1).read(request, GenerateContext("r"), now).urgency


def test_a_lower_priority_runs_first_and_a_jump_moves_the_arrival_earlier():
    assert (
        urgency(priority=-1) < urgency(now=9.0) < urgency(priority_jump=0.5) < urgency() < urgency(priority=1)
    )


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_nobody_is_overtaken_for_ever_whatever_the_priorities(waiting, newcomer):
    longest = 2 * MAX_CLASSES * CLASS_SECONDS
    assert urgency(now=0.0, priority=waiting) < urgency(now=longest + 1.0, priority=newcomer)


def test_the_prefix_cache_is_shared_within_a_salt_and_left_alone_on_request():
    assert read().cache_root == read(cache_salt="").cache_root != read(cache_salt="a").cache_root
    assert read(bypass_prefix_cache=True).cache_root is None
    assert read(is_probe=True).cache_root is None


numbers = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-45, 3e38])
ids = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 99), max_size=4)


@settings(max_examples=examples(200), deadline=None)
@given(
    prompt=ids,
    stop=st.fixed_dictionaries({}, optional={"max_tokens": st.integers(0, 2**32 - 1), "stop_token_ids": ids}),
    sampling=st.fixed_dictionaries(
        {},
        optional={
            "temperature": numbers,
            "top_p": numbers,
            "min_p": numbers,
            "repetition_penalty": numbers,
            "top_k": st.integers(-(2**31), 2**31 - 1),
            "n": st.integers(0, 2**32 - 1),
            "allowed_token_ids": ids,
        },
    ),
)
def test_any_message_is_read_or_refused_with_an_engine_error(prompt, stop, sampling):
    try:
        request = read(token_ids=prompt, **stops(**stop), **options(**sampling))
    except EngineError:
        return
    params = request.sampling
    assert 0.0 <= params.temperature <= 100.0
    assert 0 <= params.top_k <= 100
    assert len(request.prompt_token_ids) < request.stop.max_total_tokens <= 49
