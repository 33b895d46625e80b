"""Properties of the sampler: what every option means, and that rows do not see each other."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.requests.params import SamplingParams, StopRules
from enginewire.torch_engine.requests.scores import LogprobsWanted
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.sampling.random_numbers import uniforms
from enginewire.torch_engine.sampling.sampler import cut_tail, invert, sample
from tests.long import examples

VOCAB = 50
OPEN_END = StopRules(max_total_tokens=1000)


def sequence(
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    index: int = 0,
    stop: StopRules = OPEN_END,
    logprobs: LogprobsWanted | None = None,
    **sampling: object,
) -> Sequence:
    params = SamplingParams(**{"seed": 0, **sampling})
    request = Request(GenerateContext("r"), prompt or [1], params, stop, (0, 0.0, 0), logprobs)
    made = Sequence(request, index)
    for token in output or []:
        made.append(token)
    request.sequences = [made]
    return made


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def pick(logits: torch.Tensor, *rows: Sequence) -> list[int]:
    sampled = sample(logits.clone(), rows).read()
    assert all(row.is_sound and not row.is_ruled_out for row in sampled)
    return [row.token_id for row in sampled]


def test_zero_temperature_and_top_k_one_are_greedy():
    logits = random_logits(3)
    rows = (sequence(temperature=0.0), sequence(top_k=1, seed=5), sequence(temperature=50.0, top_k=1))
    assert pick(logits, *rows) == logits.argmax(-1).tolist()


sampling_options = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**64 - 1),
        "temperature": st.sampled_from([0.0, 0.01, 0.7, 1.0, 5.0]),
        "top_k": st.sampled_from([0, 1, 3, 40, VOCAB]),
        "top_p": st.sampled_from([1e-6, 0.5, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.2, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "logit_bias": st.sampled_from([(), ((3, 5.0),)]),
        "output": st.lists(st.integers(0, VOCAB - 1), max_size=6),
        "index": st.integers(0, 3),
    }
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(sampling_options, min_size=1, max_size=6), st.integers(0, 1000))
def test_a_row_gets_the_same_token_whatever_is_beside_it(options, seed):
    logits = random_logits(len(options), seed)
    together = pick(logits, *(sequence(**option) for option in options))
    alone = [pick(logits[row : row + 1], sequence(**option))[0] for row, option in enumerate(options)]
    assert together == alone


def test_draws_follow_the_distribution():
    logits = random_logits(1).expand(20_000, -1)
    tokens = pick(logits, *(sequence(seed=seed, temperature=1.5) for seed in range(20_000)))
    expected = (logits[0] / 1.5).softmax(-1)
    counts = torch.bincount(torch.tensor(tokens), minlength=VOCAB) / 20_000
    assert (counts - expected).abs().max() < 0.012


def test_choices_and_positions_draw_independently():
    seen = {
        pick(torch.zeros(1, VOCAB), sequence(index=i, output=[2] * p))[0] for i in range(8) for p in range(8)
    }
    assert len(seen) > VOCAB // 3


def test_uniforms_are_uniform_and_depend_on_every_key():
    numbers = uniforms([7] * 4000, [0] * 4000, range(4000))
    assert 0.0 <= numbers.min() < numbers.max() < 1.0
    assert abs(numbers.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05
    keys = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 0, 0), (1, 1, 0), (0, 0, 0)]
    assert len(set(uniforms(*zip(*keys, strict=True)))) == len(keys)


def test_uniforms_never_change_between_releases():
    """A resumed request must continue with the numbers of the engine that began it."""
    assert uniforms([42], [1], [9]).tolist() == [0.3774186062650281]


def kept(probs: list[float], **sampling: object) -> list[int]:
    cut = cut_tail(torch.tensor([probs]), [SamplingParams(seed=0, **sampling)])
    return cut[0].nonzero()[:, 0].tolist()


def test_top_k_top_p_and_min_p_keep_what_they_promise():
    probs = [0.1, 0.4, 0.05, 0.25, 0.2]
    assert kept(probs, top_k=2) == [1, 3]
    assert kept(probs, top_p=0.4) == [1]
    assert kept(probs, top_p=0.41) == [1, 3]
    assert kept(probs, top_p=1e-6) == [1]
    assert kept(probs, min_p=0.5) == [1, 3, 4]
    assert kept(probs, top_k=4, min_p=0.6) == [1, 3]
    # Top-p counts the share within top-k: 0.4 of 0.65 is above 0.6.
    assert kept(probs, top_k=2, top_p=0.6) == [1]
    assert kept([0.3, 0.3, 0.3, 0.1], top_k=2) == [0, 1, 2], "equal probabilities stay together"


def test_a_nucleus_wider_than_the_first_look_is_found():
    probs = torch.full((2, 5000), 1 / 5000)
    cut = cut_tail(probs, [SamplingParams(seed=0, top_p=0.9), SamplingParams(seed=0, top_k=5)])
    assert (cut > 0).sum(-1).tolist() == [5000, 5000]
    ramp = torch.arange(1, 5001, dtype=torch.float32)
    probs = (ramp / ramp.sum())[None]
    cut = cut_tail(probs, [SamplingParams(seed=0, top_p=0.5)])
    assert probs[cut > 0].sum() == pytest.approx(0.5, abs=1e-3)


def test_inversion_never_picks_a_token_of_probability_zero():
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    assert invert(probs, torch.tensor([0.0])).tolist() == [1]
    assert invert(probs, torch.tensor([1 - 2.0**-53], dtype=torch.float64)).tolist() == [3]


def test_penalties_change_logits_by_their_definition():
    logits = torch.full((1, VOCAB), 1.0)
    logits[0, 7], logits[0, 8], logits[0, 9] = 4.0, -2.0, 3.0
    row = sequence(
        prompt=[7, 8],
        output=[9, 9, 8],
        temperature=0.0,
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    )
    sample(logits, [row])
    assert logits[0, 7].item() == 4.0 / 2
    assert logits[0, 8].item() == -2.0 * 2 - 0.5 - 0.25
    assert logits[0, 9].item() == 3.0 / 2 - 0.5 - 2 * 0.25
    assert logits[0, 10].item() == 1.0


def test_neutral_penalties_change_nothing():
    logits = random_logits(1)
    untouched = logits.clone()
    sample(logits, [sequence(output=[3, 4], temperature=0.0)])
    assert torch.equal(logits, untouched)


def test_token_rules_bias_ban_and_allow():
    logits = torch.arange(VOCAB, dtype=torch.float32)[None]
    assert pick(logits, sequence(temperature=0.0, logit_bias=((3, 100.0),))) == [3]
    assert pick(logits, sequence(temperature=0.0, allowed_token_ids=(4, 9))) == [9]
    assert pick(logits, sequence(temperature=0.0, bad_words=((VOCAB - 1,),))) == [VOCAB - 2]


def test_a_bad_word_of_several_tokens_is_banned_only_where_it_would_complete():
    logits = torch.arange(VOCAB, dtype=torch.float32)[None]
    word = ((5, VOCAB - 1),)
    assert pick(logits, sequence(output=[5], temperature=0.0, bad_words=word)) == [VOCAB - 2]
    assert pick(logits, sequence(output=[6], temperature=0.0, bad_words=word)) == [VOCAB - 1]
    # The prompt is no output: what stands there does not begin a bad word.
    assert pick(logits, sequence(prompt=[5], temperature=0.0, bad_words=word)) == [VOCAB - 1]


def test_stops_are_masked_until_the_last_of_min_tokens():
    logits = torch.arange(VOCAB, dtype=torch.float32)[None]
    stop = StopRules(100, min_tokens=2, eos_token_ids=frozenset({VOCAB - 1}), stop_token_ids=frozenset({48}))
    assert pick(logits, sequence(temperature=0.0, stop=stop)) == [47]
    assert pick(logits, sequence(output=[2], temperature=0.0, stop=stop)) == [VOCAB - 1]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_poisoned_row_fails_alone(poison, temperature):
    logits = random_logits(3)
    logits[1, 4] = poison
    rows = [sequence(temperature=temperature, seed=row, top_p=0.9) for row in range(3)]
    sampled = sample(logits.clone(), rows).read()
    assert [row.is_sound for row in sampled] == [True, False, True]
    assert not any(row.is_ruled_out for row in sampled)
    others = pick(logits[[0, 2]], rows[0], rows[2])
    assert [sampled[0].token_id, sampled[2].token_id] == others


def test_a_row_with_no_token_left_fails():
    row = sequence(temperature=0.0, allowed_token_ids=(4,), bad_words=((4,),))
    (found,) = sample(random_logits(1), [row]).read()
    assert found.is_ruled_out
    assert found.is_sound


def test_logprobs_are_those_of_the_raw_distribution():
    logits = random_logits(2)
    raw = logits.log_softmax(-1)
    want = LogprobsWanted(3, token_ids=(8, 2))
    row = sequence(logprobs=want, temperature=0.3, seed=3, logit_bias=((11, 50.0),), top_k=5)
    other, chosen = sample(logits.clone(), [sequence(), row]).read()
    found = chosen.logprobs
    assert other.logprobs is None
    assert chosen.token_id == 11
    assert found.token == pytest.approx(raw[1, 11].item())
    assert found.rank == 1 + int((raw[1] > raw[1, 11]).sum())
    assert found.top_ids == raw[1].topk(3).indices.tolist()
    assert found.top == pytest.approx(raw[1].topk(3).values.tolist())
    assert found.selected == pytest.approx(raw[1, [8, 2]].tolist())


def test_an_impossible_token_has_a_finite_logprob():
    logits = torch.zeros(1, VOCAB)
    logits[0, 5:] = -math.inf
    want = LogprobsWanted(0, token_ids=(9,))
    found = sample(logits, [sequence(temperature=0.0, logprobs=want)]).read()[0].logprobs
    assert found.selected == [pytest.approx(-1e30)]
    assert found.top == []


def test_a_mixed_batch_of_thousands_of_draws_keeps_every_filter():
    logits = random_logits(1)
    order = logits[0].argsort(descending=True).tolist()
    rows = [sequence(seed=seed, top_k=1 + seed % 5, temperature=2.0) for seed in range(2000)]
    seen = Counter()
    for row, token in zip(rows, pick(logits.expand(2000, -1), *rows), strict=True):
        assert token in order[: row.request.sampling.top_k]
        seen[token] += 1
    assert set(seen) == set(order[:5])
