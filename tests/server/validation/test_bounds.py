"""What an engine measures requests by."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES, UNBOUNDED
from enginewire.server.validation.bounds import Bounds, effective_limits

N, LOGPROBS, TOP_K = (
    FIELD_RULES[path] for path in ("sampling_options.n", "output_options.logprobs", "sampling_options.top_k")
)


def test_an_engine_may_name_another_bound() -> None:
    assert Bounds.of(pb.EngineConfig()).most(N) == 128
    assert Bounds.of(pb.EngineConfig(limits=pb.Limits(max_n=4))).most(N) == 4
    assert Bounds.of(pb.EngineConfig(limits=pb.Limits(max_n=400))).most(N) == 400


def test_there_are_no_more_tokens_to_name_than_the_vocabulary_has() -> None:
    small, large = (Bounds.of(pb.EngineConfig(vocab_size=size)) for size in (7, 1000))
    assert (small.most(LOGPROBS), large.most(LOGPROBS)) == (7, 20)
    assert (small.most(TOP_K), large.most(TOP_K)) == (7, 1000)


def test_what_an_engine_does_not_say_is_not_bounded() -> None:
    bounds = Bounds.of(pb.EngineConfig())
    assert (bounds.context_length, bounds.max_prompt_tokens) == (UNBOUNDED, UNBOUNDED)


def test_the_limits_in_effect_are_the_contract_s_where_an_engine_says_nothing() -> None:
    limits = effective_limits(pb.EngineConfig(limits=pb.Limits(max_n=4)))
    assert (limits.max_n, limits.max_logit_bias) == (4, 1024)
