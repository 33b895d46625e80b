"""Few and asynchronous copies between the host and another device; on a CPU nothing is copied twice.

A step sends its inputs in one piece and waits once, for what it has computed. Pinned memory lets a copy to
the device run on while the host goes ahead. Knows nothing about what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import chain
from typing import cast

import torch
from torch import Tensor


def gather(columns: Seq[Seq[int]], device: torch.device) -> Tensor:
    """The columns one after the other in an int32 tensor of the host that is ready to go to `device`."""
    return torch.tensor(list(chain.from_iterable(columns)), dtype=torch.int32, pin_memory=is_far(device))


def send(columns: Seq[Seq[int]], device: torch.device) -> list[Tensor]:
    """The columns as int32 tensors that lie one after the other in one buffer."""
    there = gather(columns, device).to(device, non_blocking=True)
    return list(torch.split(there, [len(column) for column in columns]))


def send_index(rows: Seq[int], device: torch.device) -> Tensor:
    """Row numbers to index with."""
    return torch.tensor(rows, dtype=torch.int64, pin_memory=is_far(device)).to(device, non_blocking=True)


def send_column(values: Seq[float], like: Tensor) -> Tensor:
    """[len(values), 1] in the dtype of `like`."""
    column = torch.tensor(values, dtype=like.dtype, pin_memory=is_far(like.device))[:, None]
    return column.to(like.device, non_blocking=True)


class HostCopy:
    """Tensors of equal length on their way to the host. What the device does after them is not waited for."""

    def __init__(self, *rows: Tensor) -> None:
        stacked = torch.stack([row.long() for row in rows])
        self._numbers = stacked.to("cpu", non_blocking=True)
        self._arrival = torch.Event(stacked.device) if is_far(stacked.device) else None
        if self._arrival is not None:
            self._arrival.record()

    def read(self) -> list[list[int]]:
        """As lists. The only place where a plain step waits for the device."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return cast(list[list[int]], self._numbers.tolist())


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it; raises what went wrong there."""
    if is_far(device):
        torch.cuda.synchronize(device)


def is_far(device: torch.device) -> bool:
    """True when reading a number from there means to wait for all that was asked of it before."""
    return device.type != "cpu"


def split_rows(rows: Tensor, size: int) -> list[Tensor]:
    """Tiles of `size` rows each; the last is filled up with zeros."""
    tiles = list(torch.split(rows, size))
    missing = size * len(tiles) - len(rows)
    if missing:
        tiles[-1] = torch.cat((tiles[-1], rows.new_zeros(missing, *rows.shape[1:])))
    return tiles


def join_rows(tiles: list[Tensor] | tuple[Tensor, ...], num_rows: int) -> Tensor:
    """The first `num_rows` rows of tiles."""
    return (tiles[0] if len(tiles) == 1 else torch.cat(tiles))[:num_rows]
