"""xgrammar: grammars that it compiles, and how far an output has come in them.

Knows nothing about limits, processes or logits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass

import numpy

from enginewire.program.light_import import missing, standing_in
from enginewire.server.engines.guides.coverage import (
    regex_for_xgrammar,
    schema_for_xgrammar,
    tag_for_xgrammar,
)
from enginewire.server.engines.guides.messages import first_line
from enginewire.server.engines.guides.schema import InvalidGuide
from enginewire.torch_engine.guided.library import MAX_WHITESPACE, Vocabulary

with suppress(ImportError), missing("torch"):
    import tvm_ffi  # noqa: F401  # xgrammar is built on it; it asks whether torch is there
with standing_in("torch", "transformers"):
    import xgrammar


class XGrammar:
    """The library with one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=list(vocabulary.eos_token_ids) or None,
        )
        self.vocab_size = len(vocabulary.tokens)
        compiler = xgrammar.GrammarCompiler(self._vocabulary, max_threads=1, cache_enabled=False)
        self._compilers = _compilers(compiler)

    def compile(self, kind: str, text: str, whitespace: str | None = None) -> bytes:
        """The serialized grammar; raises InvalidGuide."""
        try:
            grammar = self._compilers[kind](text, whitespace)
        except (RuntimeError, ValueError) as error:
            raise InvalidGuide(first_line(error)) from None
        if not self._has_a_token(grammar):
            raise InvalidGuide("no output can match")
        return grammar.serialize_json().encode()

    def load(self, compiled: bytes) -> XGrammarGrammar:
        """The grammar that was serialized."""
        grammar = xgrammar.CompiledGrammar.deserialize_json(compiled.decode(), self._vocabulary)
        return XGrammarGrammar(grammar, max(len(compiled), grammar.memory_size_bytes))

    def _has_a_token(self, grammar: xgrammar.CompiledGrammar) -> bool:
        mask = numpy.full((1, -(-self.vocab_size // 32)), -1, dtype=numpy.int32)
        xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(mask)
        return bool(mask.any())


@dataclass(frozen=True, slots=True)
class XGrammarGrammar:
    """A compiled grammar."""

    grammar: xgrammar.CompiledGrammar
    num_bytes: int

    def start(self, ending_ids: list[int]) -> XGrammarMatcher:
        """A matcher at the beginning of the output."""
        return XGrammarMatcher(self.grammar, ending_ids)


class XGrammarMatcher:
    """Where one choice is in its grammar."""

    def __init__(self, grammar: xgrammar.CompiledGrammar, ending_ids: list[int]) -> None:
        self._matcher = (
            xgrammar.GrammarMatcher(grammar, override_stop_tokens=list(ending_ids))
            if ending_ids
            else xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
        )

    @property
    def is_over(self) -> bool:
        """True when the match has ended."""
        return self._matcher.is_terminated()

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False when the grammar does not allow it."""
        return self._matcher.accept_token(token_id)

    def fill(self, masks: object, row: int) -> bool:
        """Set the bits of the next tokens."""
        self._matcher.fill_next_token_bitmask(masks, row)  # type: ignore[arg-type]  # whoever calls has torch
        return True

    def count_allowed(self, token_ids: Seq[int]) -> int:
        """How many of these tokens it would accept one after the other."""
        count = 0
        while count < len(token_ids) and not self.is_over and self.accept(token_ids[count]):
            count += 1
        self._matcher.rollback(count)
        return count


# A guide, and the white space between its JSON tokens.
Compile = Callable[[str, str | None], xgrammar.CompiledGrammar]


def _compilers(compiler: xgrammar.GrammarCompiler) -> dict[str, Compile]:

    def json_schema(text: str, whitespace: str | None) -> xgrammar.CompiledGrammar:
        schema = schema_for_xgrammar(text)
        if whitespace is None:
            return compiler.compile_json_schema(schema, max_whitespace_cnt=MAX_WHITESPACE)
        # It knows one other way: a blank behind each comma and colon, and none elsewhere.
        if not all(re.fullmatch(whitespace, blank) for blank in ("", " ")):
            raise InvalidGuide("white space that may not be one blank is not followed by xgrammar")
        return compiler.compile_json_schema(schema, any_whitespace=False)

    def structural_tag(text: str, whitespace: str | None) -> xgrammar.CompiledGrammar:
        # Of tags it knows a bound alone.
        most = MAX_WHITESPACE if whitespace is None else 1
        return compiler.compile_structural_tag(tag_for_xgrammar(text, most))

    return {
        "json_schema": json_schema,
        "json_object": lambda _, whitespace: json_schema('{"type": "object"}', whitespace),
        "regex": lambda text, _: compiler.compile_regex(regex_for_xgrammar(text)),
        "choice": lambda text, _: compiler.compile_structural_tag(_choice_tag(json.loads(text))),
        "ebnf_grammar": lambda text, _: compiler.compile_grammar(text),
        "structural_tag": structural_tag,
    }


def _choice_tag(choices: list[str]) -> str:
    constants = [{"type": "const_string", "value": choice} for choice in choices]
    return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": constants}})
