"""What the engine asks of a grammar library, and the tokens that it tells one about.

Knows nothing about requests, queues or any one library. The process that compiles loads this too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of every token by its id, empty for one that no grammar may produce, as special ones are."""

    tokens: tuple[bytes, ...]
    eos_token_ids: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """What `from_bytes` reads."""
        tokens = [base64.b64encode(token).decode() for token in self.tokens]
        return json.dumps([tokens, self.eos_token_ids]).encode()

    @staticmethod
    def from_bytes(content: bytes) -> Vocabulary:
        """The vocabulary that `to_bytes` wrote."""
        tokens, eos_token_ids = json.loads(content)
        return Vocabulary(tuple(map(base64.b64decode, tokens)), tuple(eos_token_ids))


class LibraryMatcher(Protocol):
    """Where one choice is in its grammar, as a library follows it."""

    @property
    def is_over(self) -> bool:
        """True when the match has ended."""
        ...

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False when the grammar does not allow it."""
        ...

    def fill(self, masks: object, row: int) -> bool:
        """Set the bits of the next tokens in an array [rows, vocab / 32]; False when it cannot say.

        An array of numpy or a tensor of torch on the CPU, of numbers of 32 bits.
        """
        ...

    def count_allowed(self, token_ids: Seq[int]) -> int:
        """How many of these tokens it would accept one after the other; it stays where it is."""
        ...


class LibraryGrammar(Protocol):
    """A compiled grammar. `num_bytes` estimates the memory it takes."""

    @property
    def num_bytes(self) -> int: ...  # noqa: D102

    def start(self, ending_ids: list[int]) -> LibraryMatcher:
        """A matcher at the beginning of the output.

        `ending_ids` are no part of the match: they can be chosen where it is complete, and end it.
        Without any the match ends as soon as it is complete.
        """
        ...


class Library(Protocol):
    """One grammar library with one vocabulary of `vocab_size` tokens."""

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    def compile(self, kind: str, text: str, whitespace: str | None = None) -> bytes:
        """A grammar in the form that `load` takes. Slow, and as hungry as its guide. Raises InvalidGuide.

        `whitespace` is an expression for white space between JSON tokens, None for at most MAX_WHITESPACE.
        """
        ...

    def load(self, compiled: bytes) -> LibraryGrammar:
        """The grammar that `compile` made, perhaps in another process."""
        ...


MAX_WHITESPACE = 1
"""Characters in a row between JSON tokens: whatever is allowed, weak models fill."""
NO_ANY_WHITESPACE = " ?"
"""What `disable_any_whitespace` of vLLM leaves: a blank at most."""
KINDS = {
    "xgrammar": ("json_schema", "json_object", "regex", "choice", "ebnf_grammar", "structural_tag"),
    "llguidance": ("json_schema", "json_object", "regex", "choice", "ebnf_grammar"),
}
"""The kinds of guide that each library can follow. The first one that is installed is the default."""
