"""llguidance: grammars that it compiles, and how far an output has come in them.

It has no form in which a compiled grammar could be sent: what comes out of a compilation is the grammar
as Lark text, known to compile within the limits, and the engine compiles it once more. Knows nothing
about limits, processes or logits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import llguidance
import numpy
from llguidance.gbnf_to_lark import gbnf_to_lark

from enginewire.server.engines.guides.coverage import schema_for_llguidance
from enginewire.server.engines.guides.schema import InvalidGuide
from enginewire.torch_engine.guided.library import MAX_WHITESPACE, Vocabulary

HEAD = '%llguidance {"no_forcing": true}\n'
"""Every token that fits is allowed, not only those that the tokenizer would choose."""
WHITESPACE = rf"[\x20\x0A\x0D\x09]{{0,{MAX_WHITESPACE}}}"
ESCAPES = 'nrbtf\\"'
"""After a backslash in a string. Not `u`: the library would take `"\\u0061"` for another key than `"a"`."""
OBJECT = '{"type": "object"}'
END = b"\xff<end>"
"""A token of our own, that ends a match. Which ones end a choice is for each request to say."""
MAX_LEXER_STATES = 20_000
"""Of one or two kilobytes each, for every choice that follows a grammar."""
STATES_BYTES = 2**20
"""A guess at what a grammar takes beside its text: the library does not say."""


class LLGuidance:
    """The library with one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocab_size = len(vocabulary.tokens)
        tokens = _Tokens((*vocabulary.tokens, END))
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(tokens), n_vocab=len(tokens.tokens), eos_token=tokens.eos_token_id
        )

    def compile(self, kind: str, text: str, whitespace: str | None = None) -> bytes:
        """The grammar as Lark; raises InvalidGuide."""
        lark = _lark(kind, text, WHITESPACE if whitespace is None else whitespace)
        matcher = self._matcher(lark)
        matcher.compute_bitmask()
        if matcher.is_error():
            raise InvalidGuide(_reason(matcher.get_error()))
        return lark.encode()

    def load(self, compiled: bytes) -> LLGuidanceGrammar:
        """The grammar of that text."""
        return LLGuidanceGrammar(self._matcher(compiled.decode()), STATES_BYTES + len(compiled))

    def _matcher(self, lark: str) -> llguidance.LLMatcher:
        limits = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        return llguidance.LLMatcher(self._tokenizer, lark, log_level=0, limits=limits)


@dataclass(frozen=True, slots=True)
class LLGuidanceGrammar:
    """A compiled grammar."""

    matcher: llguidance.LLMatcher
    num_bytes: int

    def start(self, ending_ids: list[int]) -> LLGuidanceMatcher:
        """A matcher at the beginning of the output."""
        return LLGuidanceMatcher(self.matcher.deep_copy(), ending_ids)


class LLGuidanceMatcher:
    """Where one choice is in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, ending_ids: list[int]) -> None:
        self._matcher = matcher
        self._ending_ids = ending_ids
        self.is_over = not ending_ids and matcher.is_accepting()

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False when the grammar does not allow it."""
        if token_id in self._ending_ids:
            self.is_over = self._matcher.is_accepting()
            return self.is_over
        # A token that does not fit would break the matcher for good.
        if not self._matcher.validate_tokens([token_id]):
            return False
        is_accepted = self._matcher.consume_token(token_id)
        self.is_over = not self._ending_ids and self._matcher.is_accepting()
        return is_accepted

    def fill(self, masks: object, row: int) -> bool:
        """Set the bits of the next tokens; False when the library has given up."""
        mask = bytearray(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            return False
        may_end = self._matcher.is_accepting()
        for token_id in self._ending_ids:
            byte, bit = divmod(token_id, 8)
            mask[byte] = mask[byte] & ~(1 << bit) | may_end << bit
        bits = numpy.asarray(masks[row])  # type: ignore[index]  # of numpy or of torch
        bits[:] = numpy.frombuffer(mask, dtype=numpy.int32)[: len(bits)]
        return True

    def count_allowed(self, token_ids: Seq[int]) -> int:
        """How many of these tokens it would accept one after the other."""
        return self._matcher.validate_tokens(list(token_ids))


class _Tokens:
    """The vocabulary as the library reads it."""

    bos_token_id = None

    def __init__(self, tokens: Seq[bytes]) -> None:
        self.tokens = tokens
        self.eos_token_id = len(tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        """Needed to force tokens, which no grammar here does."""
        return []


def _lark(kind: str, text: str, whitespace: str) -> str:
    if kind == "regex":
        # Classes such as \d mean ASCII, as they do in xgrammar.
        return f"{HEAD}start: /{llguidance.regex_to_lark(text, 'dws')}/\n"
    if kind == "choice":
        return f"{HEAD}start: {' | '.join(json.dumps(choice) for choice in json.loads(text))}\n"
    if kind == "ebnf_grammar":
        return HEAD + _lark_from_ebnf(text)
    return f"{HEAD}start: %json {_schema(text if kind == 'json_schema' else OBJECT, whitespace)}\n"


def _lark_from_ebnf(text: str) -> str:
    try:
        return gbnf_to_lark(text).split("\n", 1)[1]
    except Exception as error:  # noqa: BLE001  # the library has no exception of its own
        raise InvalidGuide(_reason(str(error))) from None


def _schema(text: str, whitespace: str) -> str:
    schema = json.loads(schema_for_llguidance(text))
    # The options of the library are the engine's to set, not the caller's.
    options = {"x-guidance": {"whitespace_pattern": whitespace, "json_allowed_escapes": ESCAPES}}
    return json.dumps({**schema, **options} if isinstance(schema, dict) else {"allOf": [schema], **options})


def _reason(message: str) -> str:
    """The one line of a message that says what is wrong; the others show where."""
    lines = message.strip().split("\n")
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    return reason.rpartition("failed to compile JSON schema: ")[2]
