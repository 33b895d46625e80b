"""The grammar compiler: another process, its limits, its death, the cache."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from engine_server.failures import EngineDead, InvalidRequest, QueueFull
from engine_server.interface import Tokenizer
from engine_server.torch_engine import guided_compiler
from engine_server.torch_engine.guided import CompiledGuide
from engine_server.torch_engine.guided_compiler import GrammarCompiler
from engine_server.torch_engine.guided_vocabulary import read_vocabulary
from engine_server.torch_engine.params import Guide
from tests.engine_server.torch_engine.byte_level import TOKENIZER
from tests.engine_server.torch_engine.tiny import VOCAB

TOO_COSTLY = Guide("regex", "a" * 65_536)


def vocabulary_of(content: str):
    return read_vocabulary(Tokenizer({"tokenizer.json": content.encode()}), VOCAB, [1])


@pytest.fixture(scope="module")
def vocabulary():
    return vocabulary_of(TOKENIZER.to_str())


@pytest.fixture(scope="module")
def compiler(vocabulary) -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(vocabulary)
    yield made
    made.close()


def digits(count: int) -> Guide:
    return Guide("regex", f"[0-9]{{{count}}}")


def compiled(compiler: GrammarCompiler, guide: Guide) -> CompiledGuide:
    return compiler.compile(guide).result(20)


def test_a_matcher_takes_what_the_grammar_allows_and_nothing_else(compiler):
    matcher = compiled(compiler, digits(2)).start([1])
    five, letter = TOKENIZER.encode("5x").ids
    assert not matcher.accept(1)
    assert matcher.accept(five)
    assert not matcher.accept(letter)
    assert matcher.accept(five)
    assert not matcher.accept(five)
    assert not matcher.is_over
    assert matcher.accept(1)
    assert matcher.is_over


def test_a_guide_is_compiled_once_and_shared(compiler):
    first = compiler.compile(digits(3))
    assert compiler.compile(digits(3)) is first
    first.result(20)
    assert compiler.compile(digits(3)) is first


def test_a_compilation_beyond_its_limits_is_killed_and_others_go_on_beside_it(compiler):
    compiled(compiler, digits(1))
    begin = time.monotonic()
    slow, quick = compiler.compile(TOO_COSTLY), compiler.compile(digits(4))
    quick.result(20)
    assert not slow.done()
    with pytest.raises(InvalidRequest, match="too long or too much memory"):
        slow.result(20)
    assert time.monotonic() - begin < 3


def test_a_refused_guide_is_not_remembered(compiler):
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="not closed"):
            compiled(compiler, Guide("regex", "("))
    assert Guide("regex", "(") not in compiler._grammars


def test_a_worker_that_was_killed_is_replaced(compiler):
    compiled(compiler, digits(5))
    compiler._worker._process.kill()
    compiled(compiler, digits(6)).start([1])


def test_the_cache_forgets_what_was_used_least_recently(vocabulary):
    compiler = GrammarCompiler(vocabulary, cache_bytes=0)
    sizes = [compiled(compiler, digits(count)).num_bytes for count in (1, 2, 3)]
    assert list(compiler._grammars) == [digits(3)]
    compiler._cache_bytes = sum(sizes)
    for count in (1, 2):
        compiled(compiler, digits(count))
    compiled(compiler, digits(3))
    compiled(compiler, digits(4))
    assert digits(1) not in compiler._grammars
    assert digits(3) in compiler._grammars
    compiler.close()


def test_too_many_waiting_grammars_are_refused(compiler, monkeypatch):
    monkeypatch.setattr(guided_compiler, "MAX_PENDING", 1)
    waiting: Future[CompiledGuide] = compiler.compile(digits(31))
    with pytest.raises(QueueFull):
        compiler.compile(digits(32))
    waiting.result(20)


def test_no_process_runs_before_the_first_grammar(vocabulary):
    compiler = GrammarCompiler(vocabulary)
    assert compiler._worker is None
    compiler.close()


def test_closing_ends_the_worker_and_what_was_being_compiled(vocabulary):
    compiler = GrammarCompiler(vocabulary)
    waiting = [compiler.compile(digits(count)) for count in range(1, 6)]
    process = compiler._worker._process
    compiler.close()
    assert process.poll() is not None
    for future in waiting:
        assert future.cancelled() or isinstance(future.exception(), EngineDead)
    with pytest.raises(EngineDead):
        compiler.compile(digits(9))


def test_special_tokens_are_never_part_of_a_match(vocabulary):
    assert set(vocabulary.special_token_ids) >= {0}
    assert vocabulary.stop_token_ids == [1]
    assert vocabulary.vocab_size == VOCAB


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_a_tokenizer_without_bytes_has_no_vocabulary(decoder):
    content = json.loads(TOKENIZER.to_str())
    content["decoder"] = decoder
    assert vocabulary_of(json.dumps(content)) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"decoder": {"type": "ByteLevel"}}'])
def test_a_broken_tokenizer_has_no_vocabulary(content):
    assert vocabulary_of(content) is None


def test_a_byte_fallback_is_found_inside_a_sequence_of_decoders():
    content = json.loads(TOKENIZER.to_str())
    content["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    assert vocabulary_of(json.dumps(content)).vocab_type.name == "BYTE_FALLBACK"
