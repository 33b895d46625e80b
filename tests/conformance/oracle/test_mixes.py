from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.conformance.oracle.case import Cut
from enginewire.conformance.oracle.draw import Offer
from enginewire.conformance.oracle.mixes import Mix, drawn, neutral_of, of_runs, options_of, smaller
from enginewire.conformance.oracle.predict import is_possible
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.session.context import Greedy
from enginewire.conformance.session.requests import change, good_request

CONFIG = Reference().config
RUN = Greedy([5, 6, 7], [9, 9, 11, 40, 9, 12, 13, 14])
OFFER = Offer.of(CONFIG)


@pytest.mark.parametrize("name", options_of(RUN, CONFIG))
def test_each_option_lets_every_greedy_token_be_the_best(name: str) -> None:
    request = change(good_request("r", RUN.prompt), **options_of(RUN, CONFIG)[name]).request
    options = request.sampling_options
    assert not options.allowed_token_ids or set(RUN.tokens) <= set(options.allowed_token_ids)
    words = [list(word.token_ids) for word in options.bad_words_token_ids]
    assert not [word for word in words for at in range(8) if RUN.tokens[at : at + len(word)] == word]
    assert not {entry.token_id for entry in options.logit_bias if entry.bias} & set(RUN.tokens)
    assert options.temperature == 0 or options.top_k == 1
    assert options.HasField("temperature") or not CONFIG.capabilities.default_sampling.temperature


def test_bad_words_that_nearly_come_have_a_token_of_the_run_last() -> None:
    words = options_of(RUN, CONFIG)["bad_words that nearly come"]["bad_words_token_ids"]
    assert isinstance(words, list)
    asked = [list(word.token_ids) for word in words]
    assert asked[:3] == [[7, 9], [6, 7, 9], [11, 9]]
    assert {word[-1] for word in asked} <= set(RUN.tokens)


def test_every_option_has_a_request_that_a_correct_server_takes() -> None:
    server = Reference()
    for changes in options_of(RUN, CONFIG).values():
        server.validate(change(good_request("r", RUN.prompt), **changes))


def test_what_an_engine_does_not_offer_is_beside_nothing() -> None:
    modest = pb.EngineConfig(vocab_size=60, capabilities=pb.Capabilities(logprobs=True))
    assert set(options_of(RUN, modest)) == {
        *("defaults", "top_k 1", "top_p", "logprobs", "annotations", "bypass_prefix_cache", "a probe")
    }
    modest.capabilities.default_sampling.top_p = 0.9
    assert options_of(RUN, modest)["no temperature"] == {"temperature": None}


def test_what_changes_nothing_of_a_run_is_beside_it() -> None:
    server = Reference()
    for under in ({"temperature": 1.0, "seed": 7}, {"repetition_penalty": 1.3}):
        neutral = neutral_of(under, CONFIG)
        for name, changes in neutral.items():
            assert under.keys().isdisjoint(changes) or name == "no temperature"
            server.validate(change(good_request("r", RUN.prompt), **{**under, **changes}))
        assert ("top_k -1" in neutral) == ("seed" in under)
        assert "logprobs" in neutral, "others may change them"


def test_choices_of_a_seeded_run_differ_and_most_of_its_cases_ask_for_two() -> None:
    run = Greedy([5, 6, 7], [9, 10, 11, 12, 13, 14], ([9, 20, 21, 22, 23, 24],))
    assert (run.of(0), run.of(1)) == (run.tokens, run.others[0])
    found = of_runs(1, 60, [run], OFFER, [{"temperature": 1.0, "seed": 7}], CONFIG)
    assert all(is_possible(mix.case, run, OFFER.eos_token_ids) for mix in found)
    assert 20 < sum(mix.case.n == 2 for mix in found) < 60
    behind = of_runs(1, 60, [run], OFFER, [{"temperature": 1.0, "seed": 7}], CONFIG, 3)
    assert [replace(mix, case=replace(mix.case, prompt=3)) for mix in found] == behind


def test_the_mixes_of_a_seed_are_the_same_however_many_are_drawn() -> None:
    first = drawn(1, 40, [RUN], OFFER, CONFIG)
    assert first[:10] == drawn(1, 10, [RUN], OFFER, CONFIG)
    assert first != drawn(2, 40, [RUN], OFFER, CONFIG)
    assert {name for mix in first for name in mix.beside} == set(options_of(RUN, CONFIG))
    assert 0 < sum(mix.is_aborted for mix in first) < 20
    cuts = [mix.cut for mix in first if mix.cut]
    assert 0 < sum(cut.is_late for cut in cuts) < len(cuts) < 20
    assert all(mix.cut.tokens < mix.case.max_tokens and not mix.is_aborted for mix in first if mix.cut)
    assert all(mix.case.together for mix in first)


def test_a_mix_gets_simpler_until_nothing_is_beside_it() -> None:
    [mix] = drawn(3, 1, [RUN], OFFER, CONFIG)
    mix = Mix(case=mix.case, beside=("logprobs", "seed", "top_p"), is_aborted=True, cut=Cut(3))
    steps = 0
    # What has no tokens is no request; whoever shrinks leaves it out.
    while following := next((other for other in smaller(mix) if other.case.max_tokens), None):
        assert following != mix
        mix, steps = following, steps + 1
    assert (mix.beside, mix.is_aborted, mix.cut) == ((), False, None)
    assert 2 < steps < 200
