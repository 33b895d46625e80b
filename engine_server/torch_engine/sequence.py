"""One request and its choices while they wait and run.

Knows nothing about torch, protobuf or how a scheduler decides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from engine_server.interface import GenerateContext
from engine_server.torch_engine.params import Guide, SamplingParams, StopRules


class Finish(Enum):
    """Why a choice ended by itself."""

    EOS = auto()
    STOP = auto()
    LENGTH = auto()


Urgency = tuple[float, float, int]


class Matcher(Protocol):
    """Where one choice is in its grammar."""

    @property
    def is_over(self) -> bool:
        """True when the grammar allows nothing more."""
        ...

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False when the grammar does not allow it, or is too slow to follow."""
        ...

    def fill(self, masks: object, row: int) -> bool:
        """Set the bits of the next tokens in a tensor [rows, vocab / 32]; False when that is too slow."""
        ...


class Grammar(Protocol):
    """A compiled guide."""

    def start(self, ending_ids: list[int]) -> Matcher:
        """A matcher at the beginning of the output."""
        ...


@dataclass(frozen=True, slots=True)
class LogprobsWanted:
    """Per output token: `top_n` alternatives, and the log-probabilities of `token_ids`."""

    top_n: int
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BestOf:
    """The sequences are candidates: only the `n` best are returned, `with_logprobs` if the caller asked."""

    n: int
    with_logprobs: bool


@dataclass(eq=False, slots=True)
class Request:
    """What all choices of one request share.

    `urgency` orders requests, smallest first: the priority class, the effective arrival time in
    seconds and a serial number.
    """

    context: GenerateContext
    prompt_token_ids: list[int]
    sampling: SamplingParams
    stop: StopRules
    urgency: Urgency
    logprobs: LogprobsWanted | None = None
    guide: Guide | None = None
    grammar: Grammar | None = None
    best_of: BestOf | None = None
    sequences: list[Sequence] = field(default_factory=list)
    unique_prompt_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        repeats = self.sampling.repetition_penalty != 1.0
        self.unique_prompt_ids = sorted(set(self.prompt_token_ids)) if repeats else []

    @property
    def unfinished(self) -> list[Sequence]:
        """Choices that have not had their terminal yet."""
        return [sequence for sequence in self.sequences if not sequence.is_finished]

    @property
    def is_fresh(self) -> bool:
        """True while no choice has produced a token here."""
        return all(sequence.num_output_tokens == len(sequence.resumed) for sequence in self.sequences)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all choices, resumed ones included."""
        return sum(sequence.num_output_tokens for sequence in self.sequences)


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice: its tokens, how many of them are in the KV cache, and where.

    `resumed` are output tokens that an earlier engine already delivered.
    """

    request: Request
    index: int
    resumed: list[int] = field(default_factory=list)
    token_ids: list[int] = field(init=False)
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    cum_log_prob: float = 0.0
    is_finished: bool = False
    output_counts: Counter[int] = field(init=False)
    matcher: Matcher | None = None

    def __post_init__(self) -> None:
        self.token_ids = self.request.prompt_token_ids + self.resumed
        self.output_counts = Counter(self.resumed)

    @property
    def urgency(self) -> tuple[Urgency, int]:
        """The request's order, then the choice's."""
        return self.request.urgency, self.index

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far, resumed ones included."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens whose keys and values are not in the cache yet."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def must_not_end(self) -> bool:
        """True while `min_tokens` forbids EOS and stop ids as the next token."""
        return self.num_output_tokens < self.request.stop.min_tokens

    def start_matching(self) -> bool:
        """Follow the request's grammar, if any, over the resumed tokens; False when they do not match."""
        if self.request.grammar is None:
            return True
        self.matcher = self.request.grammar.start(sorted(self.request.stop.ending_ids))
        return all(self.matcher.accept(token_id) for token_id in self.resumed)

    def append(self, token_id: int) -> bool:
        """Add one sampled token; False when it is outside of the grammar."""
        self.token_ids.append(token_id)
        if self.request.sampling.has_penalties:
            self.output_counts[token_id] += 1
        return self.matcher is None or self.matcher.accept(token_id)

    def finish(self) -> Finish | None:
        """Why this choice is over, or None while it may go on."""
        stop = self.request.stop
        last = self.token_ids[-1] if self.num_output_tokens else None
        # A grammar may be at its end before `min_tokens`, or without a token that says so.
        is_over = self.matcher is not None and self.matcher.is_over
        if is_over or (self.num_output_tokens > stop.min_tokens and last in stop.ending_ids):
            is_stop = last in stop.ending_ids and last not in stop.eos_token_ids
            return Finish.STOP if is_stop else Finish.EOS
        return Finish.LENGTH if len(self.token_ids) >= stop.max_total_tokens else None
