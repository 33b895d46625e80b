"""What vLLM's requests are made of."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.vllm_engine.requests.builder import _seed


def test_every_seed_fits_into_the_signed_numbers_of_the_runner_for_gpus():
    for seed in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
        seeds = [_seed(pb.SamplingOptions(seed=seed), index) for index in range(9)]
        assert all(each is not None and 0 <= each < 2**63 for each in seeds)
        assert len(set(seeds)) == 9


def test_the_first_choice_has_the_seed_of_the_caller_and_without_one_there_is_none():
    assert _seed(pb.SamplingOptions(seed=7), 0) == 7
    assert _seed(pb.SamplingOptions(), 0) is None
