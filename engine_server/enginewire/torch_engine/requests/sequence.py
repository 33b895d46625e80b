"""One request and its choices while they wait and run.

Knows nothing about torch, protobuf or how a scheduler decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.requests.adapter import Adapter
from enginewire.torch_engine.requests.params import BeamRules, Guide, SamplingParams, StopRules
from enginewire.torch_engine.requests.pooling import Pooling
from enginewire.torch_engine.requests.prompt_embeds import PromptEmbeds
from enginewire.torch_engine.requests.scores import Beam, Continuation, LogprobsWanted, PromptScores
from enginewire.torch_engine.requests.thinking import ThinkingBudget, ThinkingRules

if TYPE_CHECKING:
    from enginewire.torch_engine.work.kinds import Work


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

    @property
    def is_too_slow(self) -> bool:
        """True when it has used up its time."""
        ...

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False when the grammar does not allow it, or is too slow to follow."""
        ...

    def fill(self, masks: object, row: int) -> bool:
        """Set the bits of the next tokens in a tensor [rows, vocab / 32]; False when that is too slow."""
        ...

    def count_allowed(self, token_ids: Seq[int]) -> int:
        """How many of these tokens, none of which ends the choice, it would accept one after the other.

        It stays where it is. 0 for one that is slow.
        """
        ...


class Drafter(Protocol):
    """Guesses the next tokens of one choice. `num_drafted` and `num_accepted` are tokens so far."""

    num_drafted: int
    num_accepted: int

    def propose(self, token_ids: Seq[int], most: int, num_sampled: int) -> list[int]:
        """Up to `most` tokens behind these, for a step in which `num_sampled` choices get a token."""
        ...

    def note(self, num_drafted: int, num_right: int) -> None:
        """A draft of `num_drafted` tokens began with `num_right` right ones."""
        ...


class Grammar(Protocol):
    """A compiled guide."""

    def start(self, ending_ids: list[int]) -> Matcher:
        """A matcher at the beginning of the output."""
        ...


@dataclass(frozen=True, slots=True)
class BestOf:
    """The sequences are candidates: only the `n` best are returned, `with_logprobs` if the caller asked."""

    n: int
    with_logprobs: bool


@dataclass(eq=False, slots=True)
class HandedOver:
    """Keys and values of the first `num_tokens` prompt tokens, computed by another engine.

    `payload` is b"" once they are needed no more.
    """

    num_tokens: int
    payload: bytearray
    release: Callable[[], None]

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self.payload = bytearray()
        self.release()


@dataclass(eq=False, slots=True)
class Request:
    """What all choices of one request share.

    `urgency` orders requests, smallest first: the arrival time in seconds, moved by what the caller's
    priority is worth, the priority itself and a serial number. `cache_root` is where the request's
    chains of block hashes begin; None keeps it out of the prefix cache. `num_cached_tokens` are prompt
    tokens that were in the cache when the first choice began to run, None before that. `prompt_scores` are
    for the caller who asked for them: the first choice gathers them while it computes the prompt. With
    `beams` the sequences are beams: they come and go, and none of them is a choice of the caller. With
    `prompt_embeds` the ids of the prompt only hold its places. With `pooling` the prompt is embedded:
    nothing is sampled, and it ends when the last token is computed. A request with `hands_over` ends when
    its prompt is computed; one with `handed_over` begins there. The kind of `work` that it is by all that is
    known once it is alive.
    """

    context: GenerateContext
    prompt_token_ids: list[int]
    sampling: SamplingParams
    stop: StopRules
    urgency: Urgency
    logprobs: LogprobsWanted | None = None
    cache_root: bytes | None = None
    num_cached_tokens: int | None = None
    guide: Guide | None = None
    grammar: Grammar | None = None
    best_of: BestOf | None = None
    adapter: Adapter | None = None
    pooling: Pooling | None = None
    hands_over: bool = False
    handed_over: HandedOver | None = None
    prompt_digest: str = ""
    prompt_scores: PromptScores | None = None
    beams: BeamRules | None = None
    thinking: ThinkingRules | None = None
    prompt_embeds: PromptEmbeds | None = None
    sequences: list[Sequence] = field(default_factory=list)
    work: Work = field(init=False, repr=False)
    unique_prompt_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        repeats = self.sampling.repetition_penalty != 1.0 and self.prompt_embeds is None
        self.unique_prompt_ids = sorted(set(self.prompt_token_ids)) if repeats else []

    @property
    def unfinished(self) -> list[Sequence]:
        """Choices that have not had their terminal yet."""
        return [sequence for sequence in self.sequences if not sequence.is_finished]

    def forget_handed_over(self) -> None:
        """Every choice has begun, or the request is over."""
        if self.handed_over:
            self.handed_over.close()
            self.handed_over = None

    @property
    def is_fresh(self) -> bool:
        """True while no choice has produced a token here."""
        return all(sequence.num_output_tokens == len(sequence.resumed) for sequence in self.sequences)

    @property
    def output_token_ids(self) -> list[list[int]]:
        """The output of each choice, resumed tokens included."""
        return [sequence.output_token_ids for sequence in self.sequences]


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice: its tokens, how many of them are in the KV cache, and where.

    `resumed` are output tokens that an earlier engine already delivered. `block_digests` is the chain of
    hashes of its full blocks, as far as anyone has asked; the first `num_cached_blocks` blocks of the
    table went through the prefix cache. The first `num_released_blocks` lie behind every window and are given
    back: the table repeats one that is held in their places. `first_copied_token` is where the KV of another
    engine begins that this step has to copy, None in other steps; `may_copy` until the sequence has run.
    `num_unread_tokens` is 1 while the next step is prepared without knowing the last token, else 0.
    """

    request: Request
    index: int
    resumed: list[int] = field(default_factory=list)
    token_ids: list[int] = field(init=False)
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    block_digests: list[bytes] = field(default_factory=list)
    num_cached_blocks: int = 0
    num_released_blocks: int = 0
    num_unread_tokens: int = 0
    cum_log_prob: float = 0.0
    is_finished: bool = False
    output_counts: Counter[int] = field(init=False)
    matcher: Matcher | None = None
    first_copied_token: int | None = None
    may_copy: bool = True
    beam: Beam | None = None
    thinking: ThinkingBudget | None = None
    drafter: Drafter | None = None

    def __post_init__(self) -> None:
        self.token_ids = self.request.prompt_token_ids + self.resumed
        self.output_counts = Counter(self.resumed)
        rules = self.request.thinking
        if rules and rules.limit is not None:
            self.thinking = ThinkingBudget(rules.tokens, rules.limit, rules.starts_open)
            for token_id in self.resumed:
                self.thinking.accept(token_id)

    @property
    def held_blocks(self) -> list[int]:
        """The blocks of the table that are this sequence's to read and to free."""
        return self.block_table[self.num_released_blocks :]

    @property
    def urgency(self) -> tuple[Urgency, int]:
        """The request's order, then the choice's."""
        return self.request.urgency, self.index

    @property
    def output_token_ids(self) -> list[int]:
        """Output tokens so far, resumed ones included."""
        return self.token_ids[len(self.request.prompt_token_ids) :]

    @property
    def num_output_tokens(self) -> int:
        """How many those are."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def num_chosen_tokens(self) -> int:
        """Output tokens so far, whether they are known yet or not."""
        return self.num_output_tokens + self.num_unread_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Tokens whose keys and values are not in the cache yet."""
        return len(self.token_ids) + self.num_unread_tokens - self.num_computed_tokens

    @property
    def needs_copy(self) -> bool:
        """True while it may still read what another engine has handed over."""
        return self.may_copy or self.first_copied_token is not None

    @property
    def scored_prompt(self) -> PromptScores | None:
        """Where this choice still has to add log-probabilities of the prompt; None when it need not."""
        scores = self.request.prompt_scores if self.index == 0 else None
        return None if scores is None or scores.is_complete else scores

    @property
    def num_reusable_tokens(self) -> int:
        """Tokens that need not be computed again where their KV is cached."""
        scores = self.scored_prompt
        return len(self.token_ids) - 1 if scores is None else len(scores)

    @property
    def is_idle(self) -> bool:
        """True for a beam that waits for the others: its continuations are known."""
        return self.beam is not None and bool(self.beam.continuations)

    @property
    def must_not_end(self) -> bool:
        """True while `min_tokens` forbids EOS and stop ids as the next token: it is not the last of them."""
        return self.num_chosen_tokens + 1 < self.request.stop.min_tokens

    @property
    def will_end(self) -> bool:
        """True when the next token is the last one, whatever it is."""
        return len(self.token_ids) + 1 >= self.request.stop.max_total_tokens

    @property
    def needs_last_token(self) -> bool:
        """True when nothing can or need be chosen for this sequence before its last token is known."""
        follows = any(each is not None for each in (self.matcher, self.thinking, self.beam))
        return follows or self.request.sampling.looks_back or self.request.hands_over

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
        if self.thinking is not None:
            self.thinking.accept(token_id)
        return self.matcher is None or self.matcher.accept(token_id)

    def finish(self) -> Finish | None:
        """Why this choice is over, or None while it may go on."""
        last = self.token_ids[-1] if self.num_output_tokens else None
        # A grammar may be at its end before `min_tokens`, or without a token that says so.
        is_over = self.matcher is not None and self.matcher.is_over
        return self._finish(last, self.num_output_tokens, is_over)

    def finish_with(self, token_id: int) -> Finish | None:
        """Why this choice would be over after one more token."""
        return self._finish(token_id, self.num_output_tokens + 1, is_over=False)

    def continue_as(self, parent: Sequence, continuation: Continuation) -> None:
        """Become the beam that adds one token to `parent`, which may be this one."""
        assert parent.beam is not None, "only beams continue each other"
        rows = (continuation.logprobs,) if continuation.logprobs else ()
        self.beam = Beam(parent.beam.score + continuation.score, parent.beam.logprobs + rows)
        if parent is not self:
            self.token_ids = list(parent.token_ids)
            self.block_digests = list(parent.block_digests)
            self.output_counts = Counter(parent.output_counts)
        self.append(continuation.token_id)

    def _finish(self, last: int | None, num_tokens: int, is_over: bool) -> Finish | None:
        """Why a choice with `num_tokens` output tokens ends with the `last` one."""
        stop = self.request.stop
        if is_over or (num_tokens >= stop.min_tokens and last in stop.ending_ids):
            is_stop = last in stop.ending_ids and last not in stop.eos_token_ids
            return Finish.STOP if is_stop else Finish.EOS
        num_prompt = len(self.request.prompt_token_ids)
        return Finish.LENGTH if num_prompt + num_tokens >= stop.max_total_tokens else None
