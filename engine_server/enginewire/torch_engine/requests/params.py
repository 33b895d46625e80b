"""What one request asks of sampling and stopping, as checked plain values.

Knows nothing about protobuf, torch or sequences.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token. Every default means "off".

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 keep everything. The repetition penalty
    counts prompt and output, presence and frequency only output. `logit_bias` maps token id to
    an addend; `bad_words` are token sequences that never appear in the output.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def is_greedy(self) -> bool:
        """True when no random number is needed."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """True when earlier tokens change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def looks_back(self) -> bool:
        """True when what may come next depends on which tokens came last."""
        return self.has_penalties or any(len(word) > 1 for word in self.bad_words)

    @property
    def has_filters(self) -> bool:
        """True when the unlikely tail is cut off before sampling."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def has_token_rules(self) -> bool:
        """True when single tokens are biased, banned or the only ones allowed."""
        return bool(self.logit_bias or self.allowed_token_ids or self.bad_words)


@dataclass(frozen=True, slots=True)
class BeamRules:
    """A beam search that keeps `width` beams and returns the best `n`.

    The score of a finished one is its log-probability divided by its length to the power of
    `length_penalty`.
    """

    width: int
    n: int
    length_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Guide:
    """A grammar as text. `kind` is a field of GuidedDecoding; the alternatives of a choice are JSON.

    `backend` is the grammar library the caller wants, empty for any. `whitespace` is an expression for white
    space between JSON tokens, None for the library's own.
    """

    kind: str
    text: str = ""
    backend: str = ""
    whitespace: str | None = None


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a choice ends. Token counts are output tokens.

    `max_total_tokens` bounds prompt plus output: the context window or `max_tokens`, whichever
    ends first. The token number `min_tokens` is the first one that may be an EOS or a stop id.
    """

    max_total_tokens: int
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()

    @property
    def ending_ids(self) -> frozenset[int]:
        """Every token id that ends a choice."""
        return self.eos_token_ids | self.stop_token_ids
