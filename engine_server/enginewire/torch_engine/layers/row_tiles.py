"""Rows in tiles of a fixed number, where the order of sums depends on how many rows there are."""

from __future__ import annotations

import torch
from torch import Tensor


def split_rows(rows: Tensor, size: int) -> list[Tensor]:
    """Tiles of `size` rows each; the last is filled up with zeros."""
    tiles = list(torch.split(rows, size))
    missing = size * len(tiles) - len(rows)
    if missing:
        tiles[-1] = torch.cat((tiles[-1], rows.new_zeros(missing, *rows.shape[1:])))
    return tiles


def join_rows(tiles: list[Tensor], num_rows: int) -> Tensor:
    """The first `num_rows` rows of tiles."""
    return (tiles[0] if len(tiles) == 1 else torch.cat(tiles))[:num_rows]
