"""Thinking sections: which tokens open and close one, and where a choice is in it.

A section begins after its opening token and ends before its closing one; an opening token inside of it
is a token like any other. Knows nothing about torch, protobuf or sequences.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from enginewire.server.engines.interface import Tokenizer

OPENING, CLOSING = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ThinkingTokens:
    """The ids that open and close a section."""

    opening: int
    closing: int

    def is_open_after(self, token_ids: Seq[int]) -> bool:
        """True when these tokens end inside of a section."""
        if self.opening not in token_ids:
            return False
        return next(token for token in reversed(token_ids) if token in self) == self.opening

    def count_inside(self, token_ids: Seq[int], is_open: bool) -> int:
        """How many of these tokens are inside of sections; `is_open` when the first one is."""
        total, position = 0, 0
        while position < len(token_ids):
            end = _index(token_ids, self.closing if is_open else self.opening, position)
            total += end - position if is_open else 0
            position, is_open = end + 1, not is_open
        return total

    def __contains__(self, token_id: int) -> bool:
        return token_id in (self.opening, self.closing)


@dataclass(frozen=True, slots=True)
class ThinkingRules:
    """What one request has to do with thinking: at most `limit` tokens per section, None for any number."""

    tokens: ThinkingTokens
    starts_open: bool
    limit: int | None = None


class ThinkingBudget:
    """Where one choice is, when its thinking is limited."""

    __slots__ = ("_is_open", "_left", "_limit", "_tokens")

    def __init__(self, tokens: ThinkingTokens, limit: int, is_open: bool) -> None:
        self._tokens, self._limit, self._is_open = tokens, limit, is_open
        self._left = limit

    @property
    def forced_id(self) -> int | None:
        """The token that must come next, because the section is as long as it may be."""
        return self._tokens.closing if self._is_open and self._left <= 0 else None

    def accept(self, token_id: int) -> None:
        """Go on by one token."""
        if self._is_open:
            self._is_open = token_id != self._tokens.closing
            self._left -= 1
        elif token_id == self._tokens.opening:
            self._is_open, self._left = True, self._limit


def find_thinking_tokens(tokenizer: Tokenizer | None, vocab_size: int) -> ThinkingTokens | None:
    """`<think>` and `</think>`, where the tokenizer's file says that both were added as tokens."""
    try:
        content = json.loads(tokenizer.files.get("tokenizer.json", b"{}") if tokenizer else b"{}")
        added = {entry["content"]: entry["id"] for entry in content.get("added_tokens") or ()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    ids = [added.get(text) for text in (OPENING, CLOSING)]
    opening, closing = (i if isinstance(i, int) and 0 <= i < vocab_size else None for i in ids)
    return None if opening is None or closing is None else ThinkingTokens(opening, closing)


def _index(token_ids: Seq[int], mark: int, start: int) -> int:
    """Where `mark` is next, or the end."""
    try:
        return token_ids.index(mark, start)
    except ValueError:
        return len(token_ids)
