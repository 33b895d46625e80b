"""One drawn case: a request, what its engine says, and how. Knows nothing about what has to come of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from enginewire.conformance.client_side.context import OUTPUT_TOKENS
from enginewire.conformance.client_side.stage import alphabet
from enginewire.conformance.session.requests import Value

TOKENS = frozenset({"prompt", "stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden"})
"""Fields that hold token ids, beside `tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A field at its default is not in the request."""

    tokens: tuple[tuple[int, ...], ...]
    """What the engine generates, for each choice."""
    ends: tuple[str, ...]
    """With which finish reason, for each choice."""
    messages: tuple[tuple[int, int], ...]
    """Its outputs in their order: the choice, and how many of its tokens."""
    apart: tuple[int, ...] = ()
    """Choices whose terminal output comes last and has no tokens."""
    prompt: tuple[int, ...] = ()
    """What the prompt ends with."""
    spaced: bool = False
    """The tokenizer is the one with byte fallback, which strips the first space of a text."""
    max_tokens: int = OUTPUT_TOKENS
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop_token_ids_visible: tuple[int, ...] = ()
    stop_token_ids_hidden: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    refusals: int = 0
    """Attempts that the engine refuses first, as retryable."""
    retry_after_ms: int = 0
    """What it says with each of them."""
    lost: int | None = None
    """The engine is lost before this output, and continues with it."""
    gap: int | None = None
    """The position of this output is one too high, so that the engine counts as lost before it."""
    repeat: int | None = None
    """The position of this output is one too low."""
    waits: bool = False
    """The engine does not end by itself."""

    @property
    def lost_at(self) -> int | None:
        """The output with which another attempt goes on."""
        return self.lost if self.lost is not None else self.gap

    @property
    def n(self) -> int:
        """How many choices."""
        return len(self.tokens)

    @property
    def skips(self) -> bool:
        """Special tokens have no text."""
        return self.skip_special_tokens is not False

    @property
    def options(self) -> dict[str, object]:
        """The fields that are not at their default."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return {name: value for name, (value, usual) in values.items() if value != usual}

    @property
    def changes(self) -> dict[str, Value]:
        """What it changes in a good request."""
        sent = (
            *("max_tokens", "min_tokens", "stop", "include_stop_str_in_output", "skip_special_tokens"),
            *("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden"),
        )
        changes: dict[str, Value] = {name: self.options[name] for name in sent if name in self.options}
        if self.n > 1:
            changes["n"] = self.n
        if self.logprobs:
            changes["logprobs"] = 0
        return {**changes, "ignore_eos": self.ignore_eos}

    def changed(self, name: str, value: object) -> Case:
        """A copy with another value of one field."""
        return replace(self, **{name: value})  # type: ignore[arg-type]  # the name is one of ours

    def as_json(self) -> str:
        """For a report, and for `from_json`."""
        options = {name: _spelled(name, value) for name, value in self.options.items()}
        return json.dumps(options, ensure_ascii=False)


def from_json(text: str) -> Case:
    """What `as_json` wrote, or somebody by hand. Raises ValueError."""
    try:
        options = json.loads(text)
        read = {name: _read(name, value) for name, value in options.items()}
        return Case(**read)  # type: ignore[arg-type]  # `is_possible` looks at the values
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no case: {error}") from error


def _spelled(name: str, value: object) -> object:
    if name == "tokens" and isinstance(value, tuple):
        return [_pieces(tokens) for tokens in value]
    return _pieces(value) if name in TOKENS and isinstance(value, tuple) else value


def _pieces(tokens: Sequence[int]) -> list[str | int]:
    """Ids by their text where that is readable."""
    return [_piece(token) for token in tokens]


def _piece(token: int) -> str | int:
    if 0x20 <= token < 0x7F:
        return chr(token)
    return alphabet.WORDS[token - alphabet.NUM_BYTES] if alphabet.NUM_BYTES <= token < alphabet.EOS else token


def _read(name: str, value: object) -> object:
    if name == "tokens" and isinstance(value, list):
        return tuple(tuple(alphabet.ids(*tokens)) for tokens in value)
    if name in TOKENS and isinstance(value, list):
        return tuple(alphabet.ids(*value))
    return (
        tuple(tuple(each) if isinstance(each, list) else each for each in value)
        if isinstance(value, list)
        else value
    )
