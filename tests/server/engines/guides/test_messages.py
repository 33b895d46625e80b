"""Of what libraries really say, a caller gets the reason whole, and not where in their source it arose."""

from __future__ import annotations

import pytest
import xgrammar

from enginewire.server.engines.guides.messages import first_line

TOKENS = xgrammar.TokenizerInfo(["a", "b"], vocab_size=2)


def said(kind: str, text: str) -> str:
    compiler = xgrammar.GrammarCompiler(TOKENS, max_threads=1)
    with pytest.raises(RuntimeError) as caught:
        getattr(compiler, f"compile_{kind}")(text)
    assert ".cc:" in str(caught.value)
    return first_line(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("grammar", "root ::= other", 'EBNF parser error at line 1, column 10: Rule "other" is not defined'),
        ("grammar", "root := 'a'", "EBNF lexer error at line 1, column 6: Unexpected character: ':'"),
        ("regex", "(a", "Regex parsing error at position 3: The parenthesis is not closed."),
        ("json_schema", '{"type": "text"}', 'Unsupported type "text"'),
        (
            "structural_tag",
            '{"type": "structural_tag", "format": {"type": "text"}}',
            "Invalid structural tag error: Format type not recognized: text",
        ),
    ],
)
def test_a_reason_is_told_whole(kind: str, text: str, reason: str) -> None:
    assert said(kind, text) == reason


def test_an_error_without_words_is_told_by_its_name() -> None:
    assert first_line(ValueError(" \n")) == "ValueError"


def test_a_guide_that_took_all_memory_is_too_large() -> None:
    assert first_line(RuntimeError("std::bad_alloc\nmore")) == "too large"
