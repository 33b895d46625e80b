"""How much a request may ask for at one target: tokens, blocks and choices that fit it and its speed.

What does not fit is never sent by accident: the check says that it has nothing to judge.
"""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.session import requests
from enginewire.conformance.session.bounds import Bounds
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.violation import NotApplicable
from enginewire.field_rules import FIELD_RULES

USUAL_WINDOW = 8192
"""Tokens, where the target does not say."""
USUAL_BLOCK = 16

FRESH = 1_000_000
"""Salts of fresh prompts begin here: those that checks choose are smaller."""


def most_choices(config: pb.EngineConfig) -> int:
    """As many choices as a request may have at this engine; the contract's number where it does not say."""
    offered = FIELD_RULES["sampling_options.n"].most(config.limits)
    return offered if config.capabilities.multiple_choices else 1


def most_alternatives(config: pb.EngineConfig) -> int:
    """As many log-probabilities as a row may have beside that of its token."""
    return FIELD_RULES["output_options.logprobs"].most(config.limits)


def ranks_of(config: pb.EngineConfig) -> range:
    """The data-parallel ranks that are served."""
    first = config.data_parallel_start_rank
    return range(first, first + max(config.data_parallel_size, 1))


def names_of(config: pb.EngineConfig) -> set[str]:
    """Those of the served model, adapters aside."""
    return {config.model, config.served_model_name or config.model, *config.aliases}


def slots_of(config: pb.EngineConfig) -> int:
    """Of all ranks together; 0 where nothing says how many there are."""
    return config.max_num_seqs * len(ranks_of(config))


def room_of(config: pb.EngineConfig) -> int:
    """Requests that run and wait at the same time at most; 0 where nothing says how many."""
    is_bounded = config.HasField("max_num_seqs") and config.limits.HasField("max_num_queued_reqs")
    return slots_of(config) + config.limits.max_num_queued_reqs if is_bounded else 0


class Sizes:
    """What fits the target of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.left_out: dict[str, None] = {}
        """What the check does less of than it would at a faster target, in words."""

    @property
    def info(self) -> pb.GetEngineInfoResponse:
        """GetEngineInfo as it was at the start of the run."""
        return self.session.info

    @property
    def config(self) -> pb.EngineConfig:
        """What the engine says about itself."""
        return self.info.config

    @property
    def capabilities(self) -> pb.Capabilities:
        """What it advertises."""
        return self.config.capabilities

    @property
    def limits(self) -> pb.Limits:
        """Its bounds of requests."""
        return self.config.limits

    @property
    def bounds(self) -> Bounds:
        """How long things may take here."""
        return self.session.bounds

    def prompt(self, length: int = requests.PROMPT_TOKENS, salt: int = 0) -> list[int]:
        """Valid token ids, none of which ends a choice; another `salt`, other ids."""
        return requests.prompt(length, self.config.vocab_size, self.config.eos_token_ids, salt)

    def context_length(self) -> int:
        """The window; NotApplicable where the target does not say."""
        if not self.config.HasField("context_length"):
            raise NotApplicable("EngineConfig.context_length is absent")
        return self.config.context_length

    def room(self, prompt_tokens: int) -> int:
        """Tokens that the window has beside so many others; at least 1."""
        window = self.config.context_length if self.config.HasField("context_length") else USUAL_WINDOW
        return max(window - prompt_tokens, 1)

    def longest_prompt(self, room: int = 1) -> int:
        """Tokens of the longest prompt there may be that leaves so many of the window, or more."""
        return min(self.room(room), self.limits.max_prompt_tokens or self.room(room))

    def filling_prompt(self, room: int) -> tuple[list[int], int]:
        """The longest prompt that leaves so many tokens of the window, or more, and how many it leaves.

        NotApplicable where the window is not said, or too many are left to be waited for.
        """
        length = self.longest_prompt(room)
        left = self.context_length() - length
        if left > room:
            self.tokens(left, length, least=left)
        return self.prompt(length), left

    def tokens(self, wanted: int, prompt_tokens: int = requests.PROMPT_TOKENS, *, least: int = 1) -> int:
        """Output tokens of one answer: as many as wanted, or as the window and the patience allow.

        NotApplicable where that is not even `least`.
        """
        fits, in_time = self.room(prompt_tokens), self.bounds.tokens_with_patience
        if min(fits, in_time, wanted) < least:
            why = "the context window has no room for" if fits < least else "the target is too slow for"
            raise NotApplicable(f"{why} an answer of {least} tokens")
        if in_time < min(wanted, fits):
            self.leave_out(f"answers of at most {in_time} tokens")
        return min(wanted, fits, in_time)

    def times(self, wanted: int, tokens: int = 1, *, least: int = 1) -> int:
        """How often to have an answer of so many tokens: `least` times, and more where there is time."""
        count = max(min(wanted, self.bounds.times_with_effort(tokens)), least)
        if count < wanted:
            self.leave_out(f"{count} times instead of {wanted}")
        return count

    def leave_out(self, what: str) -> None:
        """Note what there is no time for: a result says so."""
        self.left_out[what] = None

    @property
    def block_size(self) -> int:
        """Tokens of a block of the KV cache."""
        return self.config.kv_cache_block_size or USUAL_BLOCK

    def fresh_prompt(self, most: int, *, least: int = 1, room: int = requests.OUTPUT_TOKENS) -> list[int]:
        """A prompt that no check had before: up to `most` full blocks and one token, with `room` for output.

        NotApplicable where the window has not even `least` blocks.
        """
        blocks = min(most, (self.longest_prompt(room) - 1) // self.block_size)
        if blocks < least:
            raise NotApplicable(f"no prompt may have {least} blocks of {self.block_size} tokens")
        return self.prompt(blocks * self.block_size + 1, salt=self.fresh_salt())

    def fresh_salt(self) -> int:
        """That of a prompt which begins like no other."""
        return FRESH + self.session.next_number()

    def choices(self, most: int) -> int:
        """As many choices as a request may have here, at most so many."""
        return min(most, most_choices(self.config))

    def require_room(self, request: pb.GenerateRequest) -> None:
        """NotApplicable for a request whose prompt may not be so long, or that the window would cut."""
        conditions, prompt = request.request.stop_conditions, len(request.request.token_ids)
        if prompt > (self.limits.max_prompt_tokens or prompt):
            raise NotApplicable(f"Limits.max_prompt_tokens is below the {prompt} of this request")
        asked = prompt + conditions.max_tokens
        if self.config.HasField("context_length") and asked > self.config.context_length:
            raise NotApplicable(
                f"the context window has no room for {prompt} tokens and {conditions.max_tokens} more"
            )
