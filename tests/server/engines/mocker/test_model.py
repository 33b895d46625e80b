from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from enginewire.server.engines.mocker.model import Echo, Sampler, Sampling
from tests.server.engines.mocker.mockers import HELLO, LONG, sampled, started


async def test_a_seed_gives_the_same_tokens_whatever_the_batch() -> None:
    recorder = await started()
    alone = sampled(recorder, seed=7)
    await recorder.idle()
    crowd = [sampled(recorder, seed=seed) for seed in (1, 7, 2)]
    await recorder.idle()
    assert crowd[1].choices[0].token_ids == alone.choices[0].token_ids
    assert crowd[0].choices[0].token_ids != alone.choices[0].token_ids


async def test_choices_draw_different_numbers() -> None:
    recorder = await started()
    answer = sampled(recorder, n=3, seed=7)
    await recorder.idle()
    assert len({tuple(choice.token_ids) for choice in answer.choices.values()}) == 3


async def test_without_a_seed_answers_differ_unless_the_engine_has_one() -> None:
    answers = []
    for seed in (None, None, 3, 3):
        recorder = await started(seed=seed)
        answers.append(sampled(recorder))
        await recorder.idle()
    first, second, third, fourth = (answer.choices[0].token_ids for answer in answers)
    assert first != second
    assert third == fourth


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0.0}])
async def test_a_distribution_cut_to_its_best_token_is_greedy(sampling: dict[str, object]) -> None:
    recorder = await started()
    cut = sampled(recorder, seed=1, **sampling)
    greedy = sampled(recorder, temperature=0.0)
    await recorder.idle()
    assert cut.choices[0].token_ids == greedy.choices[0].token_ids


def ranks(sampling: Sampling, count: int = 4096) -> Counter[int]:
    echo = Echo([65, 66, 67], 258, unrolled=count)
    tokens = Sampler(echo, sampling, 0).run(0, count)
    return Counter(echo.rank(position, token_id) for position, token_id in enumerate(tokens))


@pytest.mark.parametrize(
    ("sampling", "probabilities"),
    [
        (Sampling(temperature=1.0), [1 / 2, 1 / 4, 1 / 8]),
        (Sampling(temperature=1.0, top_k=2), [2 / 3, 1 / 3, 0]),
        (Sampling(temperature=1.0, top_p=0.74), [2 / 3, 1 / 3, 0]),
        (Sampling(temperature=1.0, top_k=3, top_p=0.84), [2 / 3, 1 / 3, 0]),
        (Sampling(temperature=1.0, min_p=0.3), [2 / 3, 1 / 3, 0]),
        (Sampling(temperature=0.5), [3 / 4, 3 / 16, 3 / 64]),
        (Sampling(temperature=100.0, top_k=2), [0.502, 0.498, 0]),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(sampling: Sampling, probabilities: list[float]) -> None:
    found = ranks(sampling)
    for rank, probability in enumerate(probabilities, 1):
        # Four standard deviations of 4096 draws, and exactly never where the probability is 0.
        allowed = 4 * math.sqrt(probability * (1 - probability) / 4096)
        assert abs(found[rank] / 4096 - probability) <= allowed


@given(
    st.floats(0.01, 100),
    st.floats(0, 1, exclude_min=True),
    st.integers(0, 300),
    st.floats(0, 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 1000),
)
def test_tokens_do_not_depend_on_how_they_are_asked_for(
    temperature: float, top_p: float, top_k: int, min_p: float, seed: int, begin: int
) -> None:
    echo = Echo([1, 2, 3, 4, 5], 258, unrolled=64)
    sampler = Sampler(echo, Sampling(temperature, top_p, top_k, min_p, seed), 3)
    whole = sampler.run(begin, 40)
    assert whole == [token_id for i in range(40) for token_id in sampler.run(begin + i, 1)]
    assert all(0 <= token_id < 258 for token_id in whole)


async def test_log_probabilities_describe_the_distribution() -> None:
    recorder = await started()
    _, answer = recorder.submit(
        token_ids=HELLO,
        sampling_options={"temperature": 1.0, "seed": 5},
        stop_conditions=LONG,
        output_options={"logprobs": 5, "logprob_token_ids": [0, 9]},
    )
    await recorder.idle()
    total = 0.0
    for output in answer.choices[0].outputs:
        row = output.logprobs
        assert (len(row.token_logprobs), row.top_n, len(set(row.top_token_ids))) == (1, 5, 5)
        assert all(better > worse for better, worse in pairwise(row.top_logprobs))
        assert sum(map(math.exp, row.top_logprobs)) == pytest.approx(1 - 2**-5)
        shown = dict(zip(row.top_token_ids, row.top_logprobs, strict=True))
        assert shown.get(output.token_ids[0], row.token_logprobs[0]) == row.token_logprobs[0]
        assert len(row.selected_logprobs) == 2
        total += row.token_logprobs[0]
        assert output.cum_log_probs == pytest.approx(total, rel=1e-5)
    assert len(answer.choices[0].outputs) == 1000


async def test_greedy_tokens_are_the_first_alternatives() -> None:
    recorder = await started()
    answer = await recorder.run(token_ids=HELLO, output_options={"logprobs": 1})
    for output in answer.choices[0].outputs:
        assert list(output.logprobs.top_token_ids) == list(output.token_ids)
        assert list(output.logprobs.token_ranks) == [1]


async def test_without_logprobs_there_are_none() -> None:
    recorder = await started()
    answer = await recorder.run(token_ids=HELLO)
    assert not any(output.HasField("logprobs") for output in answer.choices[0].outputs)
