"""What the process that compiles grants, and what the libraries in it are told."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy
import pytest

from enginewire.server.engines.guides.schema import InvalidGuide
from enginewire.torch_engine.guided import (
    llguidance as guided_llguidance,
    size as guided_size,
    worker as guided_worker,
)
from enginewire.torch_engine.guided.library import MAX_WHITESPACE, Library, LibraryMatcher, Vocabulary
from enginewire.torch_engine.guided.open_library import open_library
from enginewire.torch_engine.guided.worker import (
    COMPILED,
    CPU_SECONDS,
    MEMORY_BYTES,
    REFUSED,
    WALL_SECONDS,
    answer,
)

VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (256,))
TICK = 0.01
"""The kernel rounds timers up to whole ones."""
LIMITS = """
import json, resource, signal
from enginewire.torch_engine.guided.worker import _limit
_limit()
timers = [signal.getitimer(kind)[0] for kind in (signal.ITIMER_PROF, signal.ITIMER_REAL)]
print(json.dumps([*timers, resource.getrlimit(resource.RLIMIT_AS)[0]]))
"""
LOADED = """
import sys
from enginewire.torch_engine.guided.library import Vocabulary
from enginewire.torch_engine.guided.open_library import open_library
from enginewire.torch_engine.guided.worker import answer
library = open_library(sys.argv[1], Vocabulary((b"a", b"")))
assert answer(library, "regex", "a+").startswith(b"+")
print(sorted({"torch", "transformers"} & set(sys.modules)))
"""


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def library(request) -> Library:
    return open_library(request.param, VOCABULARY)


def num_accepted(library: Library, kind: str, guide: str, text: bytes) -> int:
    """How many bytes of a text the grammar follows, one token each."""
    matcher = library.load(library.compile(kind, guide)).start([256])
    return next((place for place, byte in enumerate(text) if not matcher.accept(byte)), len(text))


def allowed_by(matcher: LibraryMatcher, vocab_size: int) -> list[int]:
    """The tokens that may come next."""
    mask = numpy.zeros((1, -(-vocab_size // 32)), dtype=numpy.int32)
    assert matcher.fill(mask, 0)
    return list(numpy.flatnonzero(numpy.unpackbits(mask.view(numpy.uint8), bitorder="little")))


def test_a_compilation_is_limited_in_processor_time_in_time_and_in_memory():
    process = subprocess.run([sys.executable, "-c", LIMITS], capture_output=True, check=True)
    processor, wall, memory = json.loads(process.stdout)
    assert 0 < processor <= CPU_SECONDS + TICK
    assert 0 < wall <= WALL_SECONDS + TICK
    assert MEMORY_BYTES < memory < 2 * MEMORY_BYTES


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
def test_the_process_that_compiles_loads_neither_torch_nor_transformers(name):
    process = subprocess.run([sys.executable, "-c", LOADED, name], capture_output=True, check=True)
    assert process.stdout == b"[]\n"


def test_a_grammar_that_is_large_when_compiled_is_refused(library, monkeypatch):
    compiled = answer(library, "regex", "a{5}")
    monkeypatch.setattr(guided_worker, "MAX_COMPILED_BYTES", len(compiled) - len(COMPILED))
    assert answer(library, "regex", "a{5}") == compiled
    monkeypatch.setattr(guided_worker, "MAX_COMPILED_BYTES", len(compiled) - len(COMPILED) - 1)
    assert answer(library, "regex", "a{5}") == REFUSED + b"too large"


def test_what_a_library_says_about_a_guide_is_cut(monkeypatch):
    def refuse(kind: str, text: str) -> None:
        raise InvalidGuide("é\ud800" * 500)

    monkeypatch.setattr(guided_worker, "check_size", refuse)
    assert answer(open_library("xgrammar", VOCABULARY), "regex", "a") == REFUSED + ("é?" * 100).encode()


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_white_space_between_json_tokens_is_bounded(library, kind):
    guide = '{"type": "object"}' if kind == "json_schema" else ""
    assert num_accepted(library, kind, guide, b"{" + b" " * 60) == 1 + MAX_WHITESPACE


def test_digits_and_letters_of_a_class_are_those_of_ascii(library):
    assert num_accepted(library, "regex", r"\d\w\s", b"7x ") == 3
    assert num_accepted(library, "regex", r"\d", "\u0663".encode()) == 0
    assert num_accepted(library, "regex", r"\w", "é".encode()) == 0


def test_a_guide_is_measured_before_a_library_sees_it(library, monkeypatch):
    monkeypatch.setattr(guided_size, "MAX_SYMBOLS", 5)
    assert answer(library, "regex", "a{5}").startswith(COMPILED)
    assert answer(library, "regex", "a{6}").startswith(REFUSED + b"too large, repetitions written out: 6")


def test_the_options_of_a_library_are_not_the_callers(library):
    guide = json.dumps({"type": "object", "x-guidance": {"whitespace_pattern": "x*"}})
    assert num_accepted(library, "json_schema", guide, b"{xx") == 1
    assert num_accepted(library, "json_schema", guide, b"{" + b" " * 60) == 1 + MAX_WHITESPACE


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
def test_every_token_that_fits_is_allowed_however_the_text_is_cut(name):
    pair = Vocabulary((*VOCABULARY.tokens[:256], b"ab", b""), (257,))
    library = open_library(name, pair)
    matcher = library.load(library.compile("regex", "abc")).start([257])
    assert allowed_by(matcher, len(pair.tokens)) == [ord("a"), 256]


def test_a_lexer_that_grows_too_large_is_refused_or_gives_up_on_the_way(monkeypatch):
    guide, library = "(a|b)*a(a|b){12}", open_library("llguidance", VOCABULARY)
    monkeypatch.setattr(guided_llguidance, "MAX_LEXER_STATES", 5)
    with pytest.raises(InvalidGuide, match="too many states"):
        library.compile("regex", guide)
    monkeypatch.setattr(guided_llguidance, "MAX_LEXER_STATES", 30)
    matcher = library.load(library.compile("regex", guide)).start([256])
    num_masks = 0
    while num_masks < 100 and matcher.fill(numpy.zeros((1, 9), dtype=numpy.int32), 0):
        num_masks += 1
        assert matcher.accept(b"ab"[num_masks.bit_count() % 2])
    assert 0 < num_masks < 100
