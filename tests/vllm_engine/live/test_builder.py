"""What vLLM's requests are made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from enginewire import v1 as pb

SeedOf = Callable[[pb.SamplingOptions, int], int | None]

# Of torch's own, when vLLM is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def seed_of() -> SeedOf:
    """The seed of a choice, as vLLM is given it."""
    from enginewire.vllm_engine.requests.builder import _seed

    return _seed


def test_every_seed_fits_into_the_signed_numbers_of_the_runner_for_gpus(seed_of: SeedOf) -> None:
    for seed in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
        seeds = [seed_of(pb.SamplingOptions(seed=seed), index) for index in range(9)]
        assert all(each is not None and 0 <= each < 2**63 for each in seeds)
        assert len(set(seeds)) == 9


def test_seeds_differ_in_what_the_generator_for_processors_takes_of_them(seed_of: SeedOf) -> None:
    import torch

    seeds = [seed_of(pb.SamplingOptions(seed=7 + (high << 32)), 0) for high in (0, 1, 2, 2**31, 2**32 - 1)]
    drawn = {float(torch.rand(1, generator=torch.Generator().manual_seed(each or 0))) for each in seeds}
    assert len(drawn) == len(seeds)


def test_the_first_choice_has_the_seed_of_the_caller_and_without_one_there_is_none(seed_of: SeedOf) -> None:
    assert seed_of(pb.SamplingOptions(seed=7), 0) == 7
    assert seed_of(pb.SamplingOptions(), 0) is None
