"""What can go on in another engine."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.backend.replay.continuation import can_continue, goes_on_like, needs_seed
from tests.backend.asking import ask
from tests.backend.hostile import engine_info

CAPABLE = pb.Capabilities(resume=True, seed=True, default_sampling=pb.SamplingDefaults(temperature=0.7))


def test_a_seed_is_needed_where_tokens_are_drawn() -> None:
    assert needs_seed(ask(), CAPABLE)
    assert needs_seed(ask(sampling_options=pb.SamplingOptions(temperature=1)), CAPABLE)
    assert not needs_seed(ask(sampling_options=pb.SamplingOptions(temperature=0)), CAPABLE)
    assert not needs_seed(ask(sampling_options=pb.SamplingOptions(seed=0)), CAPABLE)
    assert not needs_seed(ask(), pb.Capabilities(resume=True))


def test_what_cannot_go_on_exactly_is_told_apart() -> None:
    greedy = {"temperature": 0.0}
    assert can_continue(ask(sampling_options=pb.SamplingOptions(**greedy)), CAPABLE)
    assert not can_continue(ask(), CAPABLE)
    for options in ({"use_beam_search": True}, {"best_of": 2}):
        assert not can_continue(ask(sampling_options=pb.SamplingOptions(**greedy, **options)), CAPABLE)
    handed_over = ask(sampling_options=pb.SamplingOptions(**greedy), prefill_result=pb.PrefillResult())
    assert not can_continue(handed_over, CAPABLE)
    assert not can_continue(ask(sampling_options=pb.SamplingOptions(**greedy)), pb.Capabilities())


def test_engines_that_differ_in_what_decides_answers_are_not_alike() -> None:
    ours, other = engine_info(), engine_info()
    other.engine_lifetime_id = "another life"
    assert goes_on_like(ours, other)
    other.config.eos_token_ids.append(3)
    assert not goes_on_like(ours, other)
