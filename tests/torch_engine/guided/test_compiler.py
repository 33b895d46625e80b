"""The grammar compiler: another process, its limits, its death, the cache."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from tokenizers import pre_tokenizers

from enginewire.server.engines.interface import Tokenizer
from enginewire.server.failures import EngineDead, InvalidRequest, QueueFull
from enginewire.torch_engine.guided import compiler as guided_compiler, vocabulary as guided_vocabulary
from enginewire.torch_engine.guided.compiler import GrammarCompiler
from enginewire.torch_engine.guided.library import Vocabulary
from enginewire.torch_engine.guided.matcher import CompiledGuide
from enginewire.torch_engine.guided.vocabulary import read_vocabulary
from enginewire.torch_engine.guided.worker import STARTED, WALL_SECONDS
from enginewire.torch_engine.requests.params import Guide
from tests.torch_engine.guided.byte_level import TOKENIZER
from tests.torch_engine.tiny import VOCAB

TOO_COSTLY = {
    "xgrammar": Guide("regex", "a" * 65_536),
    "llguidance": Guide("json_schema", json.dumps({"properties": {f"p{i}": {} for i in range(4000)}})),
}


def vocabulary_of(content: str):
    return read_vocabulary(Tokenizer({"tokenizer.json": content.encode()}), VOCAB, [1])


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def library(request):
    return request.param


@pytest.fixture(scope="module")
def vocabulary():
    return vocabulary_of(TOKENIZER.to_str())


@pytest.fixture(scope="module")
def compiler(library, vocabulary) -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(library, vocabulary)
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
    assert not matcher.accept(1)
    assert not matcher.accept(five)


def test_a_guide_is_compiled_once_and_shared(compiler):
    first = compiler.compile(digits(3))
    assert compiler.compile(digits(3)) is first
    first.result(20)
    assert compiler.compile(digits(3)) is first


def test_a_compilation_beyond_its_limits_is_killed_and_others_go_on_beside_it(compiler, library):
    compiled(compiler, digits(1))
    begin = time.monotonic()
    slow, quick = compiler.compile(TOO_COSTLY[library]), compiler.compile(digits(4))
    quick.result(20)
    assert not slow.done()
    with pytest.raises(InvalidRequest, match="too long or too much memory"):
        slow.result(20)
    assert time.monotonic() - begin < 2 * WALL_SECONDS


def test_a_refused_guide_is_not_remembered(compiler):
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"not closed|unclosed"):
            compiled(compiler, Guide("regex", "("))
    assert Guide("regex", "(") not in compiler._grammars


def test_a_worker_that_was_killed_is_replaced(compiler):
    compiled(compiler, digits(5))
    compiler._worker._process.kill()
    compiled(compiler, digits(6)).start([1])


def test_a_grammar_whose_worker_was_replaced_meanwhile_is_compiled_by_the_next(compiler, monkeypatch):
    compiled(compiler, digits(7))
    worker = compiler._worker

    def cut_off(job: bytes) -> bytes:
        compiler._replaced(worker)
        return STARTED

    monkeypatch.setattr(worker, "ask", cut_off)
    compiled(compiler, digits(8)).start([1])
    assert compiler._worker is not worker


def test_the_cache_forgets_what_was_used_least_recently(library, vocabulary):
    compiler = GrammarCompiler(library, vocabulary, cache_bytes=0)
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


def test_the_process_imports_nothing_from_the_current_folder(library, vocabulary, tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    compiler = GrammarCompiler(library, vocabulary)
    compiled(compiler, digits(2)).start([1])
    compiler.close()


def test_an_interrupt_of_the_engine_s_terminal_does_not_reach_the_process(compiler):
    compiled(compiler, digits(2))
    process = compiler._worker._process
    assert os.getpgid(process.pid) == process.pid


def test_no_process_runs_before_the_first_grammar(library, vocabulary):
    compiler = GrammarCompiler(library, vocabulary)
    assert compiler._worker is None
    compiler.close()


def test_closing_ends_the_worker_and_what_was_being_compiled(library, vocabulary):
    compiler = GrammarCompiler(library, vocabulary)
    waiting = [compiler.compile(digits(count)) for count in range(1, 6)]
    process = compiler._worker._process
    compiler.close()
    assert process.poll() is not None
    for future in waiting:
        assert future.cancelled() or isinstance(future.exception(), EngineDead)
    with pytest.raises(EngineDead):
        compiler.compile(digits(9))


def test_special_tokens_are_never_part_of_a_match(vocabulary):
    assert vocabulary.tokens[:2] == (b"", b"")
    assert vocabulary.eos_token_ids == (1,)
    assert len(vocabulary.tokens) == VOCAB


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
    assert vocabulary_of(json.dumps(content)) is not None


def test_byte_level_tokens_are_the_bytes_that_the_tokenizer_decodes_them_to(vocabulary):
    for token_id, content in enumerate(vocabulary.tokens):
        if content:
            assert content.decode() == TOKENIZER.decode([token_id])
    assert sum(map(bool, vocabulary.tokens)) == TOKENIZER.get_vocab_size() - 2


def test_every_byte_has_a_character_in_byte_level_tokens():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert {guided_vocabulary.DECODERS["ByteLevel"](character) for character in alphabet} == {
        bytes([byte]) for byte in range(256)
    }
    for text in ("é", "日本", "😀 x"):
        [(encoded, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(
            text
        )
        assert guided_vocabulary.DECODERS["ByteLevel"](encoded) == text.encode()


def test_an_added_token_outside_of_the_byte_level_alphabet_is_its_text():
    assert guided_vocabulary.DECODERS["ByteLevel"]("a b日") == "a b日".encode()


@pytest.mark.parametrize(
    ("token", "content"),
    [("<0x0A>", b"\n"), ("<0xFf>", b"\xff"), ("▁a▁", b" a "), ("x<0x0A>", b"x<0x0A>"), ("é", b"\xc3\xa9")],
)
def test_byte_fallback_tokens_are_bytes_or_text_with_marks_for_spaces(token, content):
    assert guided_vocabulary.DECODERS["ByteFallback"](token) == content


def test_a_vocabulary_survives_the_way_to_the_worker(vocabulary):
    assert Vocabulary.from_bytes(vocabulary.to_bytes()) == vocabulary
    odd = Vocabulary((b"", b"\xff\x00", "é".encode()), (0, 2))
    assert Vocabulary.from_bytes(odd.to_bytes()) == odd
