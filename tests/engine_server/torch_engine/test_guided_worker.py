"""What the process that compiles grants, and what the libraries in it are told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from engine_server.torch_engine import guided_worker
from engine_server.torch_engine.guided_library import Library, Vocabulary, open_library
from engine_server.torch_engine.guided_worker import (
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
from engine_server.torch_engine.guided_worker import _limit
_limit()
timers = [signal.getitimer(kind)[0] for kind in (signal.ITIMER_PROF, signal.ITIMER_REAL)]
print(json.dumps([*timers, resource.getrlimit(resource.RLIMIT_AS)[0]]))
"""


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def library(request) -> Library:
    return open_library(request.param, VOCABULARY)


def num_accepted(library: Library, kind: str, guide: str, text: bytes) -> int:
    """How many bytes of a text the grammar follows, one token each."""
    matcher = library.load(library.compile(kind, guide)).start([256])
    return next((place for place, byte in enumerate(text) if not matcher.accept(byte)), len(text))


def test_a_compilation_is_limited_in_processor_time_in_time_and_in_memory():
    process = subprocess.run([sys.executable, "-c", LIMITS], capture_output=True, check=True)
    processor, wall, memory = json.loads(process.stdout)
    assert 0 < processor <= CPU_SECONDS + TICK
    assert 0 < wall <= WALL_SECONDS + TICK
    assert MEMORY_BYTES < memory < 2 * MEMORY_BYTES


def test_a_grammar_that_is_large_when_compiled_is_refused(library, monkeypatch):
    compiled = answer(library, "regex", "a{5}")
    monkeypatch.setattr(guided_worker, "MAX_COMPILED_BYTES", len(compiled) - len(COMPILED))
    assert answer(library, "regex", "a{5}") == compiled
    monkeypatch.setattr(guided_worker, "MAX_COMPILED_BYTES", len(compiled) - len(COMPILED) - 1)
    assert answer(library, "regex", "a{5}") == REFUSED + b"too large"


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_white_space_between_json_tokens_is_bounded(library, kind):
    guide = '{"type": "object"}' if kind == "json_schema" else ""
    assert num_accepted(library, kind, guide, b"{" + b" " * 60) == 1 + 20


def test_digits_and_letters_of_a_class_are_those_of_ascii(library):
    assert num_accepted(library, "regex", r"\d\w\s", b"7x ") == 3
    assert num_accepted(library, "regex", r"\d", "\u0663".encode()) == 0
    assert num_accepted(library, "regex", r"\w", "é".encode()) == 0
