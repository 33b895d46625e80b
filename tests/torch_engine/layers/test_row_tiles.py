"""Rows in tiles, and what is computed tile by tile far away."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from enginewire.torch_engine.layers.row_tiles import join_rows, split_rows
from enginewire.torch_engine.sampling import sampler


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_tiles_have_one_size_and_join_to_what_they_were(count):
    rows = torch.arange(count * 2.0).view(count, 2)
    tiles = split_rows(rows, 4)
    assert {tile.shape for tile in tiles} == {(4, 2)}
    assert join_rows(tiles, count).equal(rows)
    assert torch.cat(tiles)[count:].eq(0).all()


def test_far_away_sums_are_made_of_the_same_number_of_rows_each_time(monkeypatch):
    monkeypatch.setattr(sampler, "is_far", lambda device: True)
    summed: list[int] = []
    cumsum = Tensor.cumsum

    def noting(values: Tensor, dim: int) -> Tensor:
        summed.append(len(values))
        return cumsum(values, dim)

    monkeypatch.setattr(Tensor, "cumsum", noting)
    values = torch.rand(sampler.SUMMED_ROWS + 3, 7)
    assert sampler._running_sums(values).equal(cumsum(values, -1))
    assert summed == [sampler.SUMMED_ROWS] * 2
