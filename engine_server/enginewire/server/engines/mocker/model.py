"""The mocker's model: which token follows, as a pure function of prompt, seed, choice and position.

At every output position the tokens have a fixed ranking, and the token of rank r has probability
2 ** -r: rank 1 goes to the next token of an echo of the prompt, the other ranks to the ids after it.
So greedy decoding echoes the prompt, temperature and the filters on the distribution have closed
forms, and log-probabilities are exact. Knows nothing about requests, steps or messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

LN_2 = math.log(2.0)
PANGRAM = b"The quick brown fox jumps over the lazy dog."
UNIFORMS_PER_BLOCK = 8
MIN_TEMPERATURE = 0.01


class Echo:
    """The most probable tokens: what is repeated, over and over."""

    __slots__ = ("_length", "_unrolled", "vocab_size")

    def __init__(self, period: Sequence[int], vocab_size: int, unrolled: int) -> None:
        """`unrolled` is the longest run of tokens that `run` will be asked for."""
        self._length = len(period)
        self._unrolled = list(period) * (unrolled // len(period) + 2)
        self.vocab_size = vocab_size

    def run(self, begin: int, length: int) -> list[int]:
        """The most probable tokens of positions `begin` to `begin + length`."""
        begin %= self._length
        return self._unrolled[begin : begin + length]

    def at(self, position: int) -> int:
        """The most probable token of one position."""
        return self._unrolled[position % self._length]

    def rank(self, position: int, token_id: int) -> int:
        """1-based rank of a token at a position."""
        return (token_id - self.at(position)) % self.vocab_size + 1

    def top(self, position: int, count: int) -> list[int]:
        """The `count` most probable tokens of a position, best first."""
        best = self.at(position)
        return [(best + i) % self.vocab_size for i in range(count)]


def log_probability(rank: int) -> float:
    """Natural logarithm of the probability of a rank."""
    return -rank * LN_2


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn: `temperature` 0 is greedy, `top_k` 0 means all."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        """True when only the best token can be drawn."""
        return self.temperature == 0.0 or self.top_k == 1


class Sampler:
    """Draws the tokens of one choice. Random numbers are keyed on seed, choice and position."""

    __slots__ = ("_echo", "_key", "_log_ratio", "_mass", "_max_rank", "_sampling")

    def __init__(self, echo: Echo, sampling: Sampling, index: int) -> None:
        self._echo = echo
        self._sampling = sampling
        self._key = sampling.seed.to_bytes(8, "little") + index.to_bytes(4, "little")
        # At temperature T the ranks are geometric again, with the ratio 2 ** (-1 / T).
        self._log_ratio = -LN_2 / max(sampling.temperature, MIN_TEMPERATURE)
        self._max_rank = self._kept_ranks()
        self._mass = -math.expm1(self._log_ratio * self._max_rank)

    def run(self, begin: int, length: int) -> list[int]:
        """The tokens of positions `begin` to `begin + length`."""
        best = self._echo.run(begin, length)
        if self._sampling.is_greedy:
            return best
        vocab_size = self._echo.vocab_size
        return [
            (token_id + self._rank(uniform) - 1) % vocab_size
            for token_id, uniform in zip(best, self._uniforms(begin, length), strict=True)
        ]

    def _rank(self, uniform: float) -> int:
        rank = 1 + int(math.log1p(-uniform * self._mass) / self._log_ratio)
        return min(rank, self._max_rank)

    def _kept_ranks(self) -> int:
        sampling, kept = self._sampling, self._echo.vocab_size
        if sampling.top_k > 0:
            kept = min(kept, sampling.top_k)
        if sampling.top_p < 1.0:
            mass = -math.expm1(self._log_ratio * kept)
            kept = min(kept, math.ceil(math.log1p(-sampling.top_p * mass) / self._log_ratio))
        if sampling.min_p > 0.0:
            kept = min(kept, 1 + int(math.log(sampling.min_p) / self._log_ratio))
        return max(kept, 1)

    def _uniforms(self, begin: int, length: int) -> list[float]:
        first = begin // UNIFORMS_PER_BLOCK
        last = (begin + length - 1) // UNIFORMS_PER_BLOCK
        uniforms = [uniform for block in range(first, last + 1) for uniform in self._block(block)]
        skipped = begin - first * UNIFORMS_PER_BLOCK
        return uniforms[skipped : skipped + length]

    def _block(self, block: int) -> list[float]:
        noise = blake2b(block.to_bytes(8, "little"), key=self._key).digest()
        words = (noise[i : i + 8] for i in range(0, len(noise), 8))
        return [(int.from_bytes(word, "little") >> 11) * 2.0**-53 for word in words]
