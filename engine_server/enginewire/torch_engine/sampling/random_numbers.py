"""Counter-based random numbers: a pure function of (seed, choice, output position).

No state moves with the batch, so a choice gets the same numbers alone, in a crowd, after a
preemption and on another engine that resumes it. Knows nothing about torch or sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = 2**64 - 1


def uniforms(seeds: Seq[int], choices: Seq[int], positions: Seq[int]) -> NDArray[np.float64]:
    """One number in [0, 1) per row, with 53 random bits."""
    # Mixed one after the other: joined side by side, equal seeds and choices would cancel out.
    words = _mix(_words(seeds))
    words = _mix(words ^ _words(choices))
    words = _mix(words ^ _words(positions))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _words(values: Seq[int]) -> Words:
    return np.array([value & _MASK for value in values], dtype=np.uint64)


def _mix(words: Words) -> Words:
    """The finalizer of splitmix64: every input bit changes half of the output bits."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
