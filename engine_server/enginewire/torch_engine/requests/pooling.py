"""From the states of an input's tokens to its vector: which tokens count, and how much.

Every kind of pooling is a weighted sum over tokens, so that an input may be computed in pieces. Knows
nothing about torch, models or requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

PoolingKind = Literal["last", "mean", "cls"]


@dataclass(frozen=True, slots=True)
class Pooling:
    """How one input becomes a vector: shortened to `dimensions` if given, then brought to length 1."""

    kind: PoolingKind
    normalize: bool = True
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """How a model embeds, if it does: vectors of `size` numbers; `is_all` when it does nothing else."""

    size: int
    pooling: Pooling
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens `begin` to `end` of an input of `total` tokens, which begin at `row` of the batch."""

    kind: PoolingKind
    row: int
    begin: int
    end: int
    total: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Three columns: row `rows[i]` of the batch counts `weights[i]` in the sum of piece `owners[i]`."""

    num_pieces: int
    rows: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


def shares_of(pieces: Iterable[Piece]) -> Shares:
    """What to add up for every piece; the sums of all pieces of an input add up to its vector."""
    pieces = list(pieces)
    shares = Shares(len(pieces))
    for owner, piece in enumerate(pieces):
        places, weight = _counted(piece)
        shares.rows.extend(piece.row + place - piece.begin for place in places)
        shares.owners.extend([owner] * len(places))
        shares.weights.extend([weight] * len(places))
    return shares


def _counted(piece: Piece) -> tuple[range, float]:
    """The tokens of a piece that count, and the weight of each."""
    if piece.kind == "mean":
        return range(piece.begin, piece.end), 1.0 / piece.total
    place = 0 if piece.kind == "cls" else piece.total - 1
    return range(place, place + 1) if piece.begin <= place < piece.end else range(0), 1.0
