"""What can go on in another engine."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.backend.engines.likeness import begins_like
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


GREEDY = pb.SamplingOptions(temperature=0.0)
GUIDED = pb.SamplingOptions(temperature=0.0, guided_decoding=pb.GuidedDecoding(regex="a"))
SEEDED = pb.SamplingOptions(temperature=1.0, seed=1)


def test_of_an_engine_without_resume_only_what_the_model_decides_alone_goes_on() -> None:
    assert can_continue(ask(sampling_options=GREEDY), pb.Capabilities(seed=True))
    for options in (GUIDED, SEEDED, pb.SamplingOptions()):
        assert not can_continue(ask(sampling_options=options), pb.Capabilities(seed=True))


def named(name: str, *, resume: bool) -> pb.GetEngineInfoResponse:
    info = engine_info()
    info.engine_name, info.config.capabilities.resume = name, resume
    return info


def test_engines_that_differ_in_what_decides_answers_are_not_alike() -> None:
    ours, other = named("a", resume=True), named("a", resume=True)
    other.engine_lifetime_id = "another life"
    for options in (GREEDY, SEEDED):
        assert goes_on_like(ours, other, ask(sampling_options=options))
    other.config.eos_token_ids.append(3)
    for options in (GREEDY, SEEDED):
        assert not goes_on_like(ours, other, ask(sampling_options=options))
    assert not begins_like(ours, other)


def test_an_engine_of_another_name_goes_on_with_what_the_model_decides_alone() -> None:
    resumes, does_not = named("a", resume=True), named("b", resume=False)
    assert goes_on_like(does_not, resumes, ask(sampling_options=GREEDY))
    assert not goes_on_like(resumes, does_not, ask(sampling_options=GREEDY))
    for options in (GUIDED, SEEDED):
        assert not goes_on_like(does_not, resumes, ask(sampling_options=options))


def test_what_nobody_has_seen_anything_of_begins_at_any_engine_of_the_same_model() -> None:
    ours, other = named("a", resume=True), named("b", resume=False)
    other.config.context_length = 7
    assert begins_like(ours, other)
    other.config.model = "another"
    assert not begins_like(ours, other)
