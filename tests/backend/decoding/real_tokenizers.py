"""Tokenizers that people use, and tokenizers set up as theirs are, from what is installed here.

`tekken_240911.json` and `mistral_instruct_tokenizer_240323.model.v3` come from the package
mistral-common; the others are trained on SAMPLES. Knows nothing about the detokenizers under test.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mistral_common
from google.protobuf.message import Message
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from enginewire.byte_level import CHARACTER_OF_BYTE
from enginewire.conformance.wire.foreign.classes import Field, classes
from tests.backend.decoding import toy_tokenizers as toy
from tests.repository import ROOT

DATA = Path(mistral_common.__file__).parent / "data"
TEKKEN = DATA / "tekken_240911.json"
SENTENCEPIECE = DATA / "mistral_instruct_tokenizer_240323.model.v3"
# A split of numbers and words as newer models have it.
WORDS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
SAMPLES: Mapping[str, Sequence[str]] = {
    "English": [
        "The quick brown fox jumps over the lazy dog.",
        "It wasn't there, she said; naïve, but 3.14159 isn't 22/7!",
        "  Leading spaces,\ttabs and\n\n\nempty lines.  ",
    ],
    "Chinese, Japanese, Korean": [
        "東京は日本の首都です。こんにちは、世界！",
        "我能吞下玻璃而不伤身体。𠮷野家 𩸽",
        "다람쥐 헌 쳇바퀴에 타고파. 한글",
    ],
    "emoji": [
        "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 👍🏽 🇯🇵🇺🇳 1️⃣ ❤️\u200d🔥",
        "🧑🏿\u200d🚀🫱🏻\u200d🫲🏾 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ],
    "right to left": [
        "مرحبا بالعالم، كيف حالك؟ ١٢٣ \u202babc\u202c",
        "שָׁלוֹם עוֹלָם! אני יכול לאכול זכוכית",
        "سلام می\u200cخواهم",
    ],
    "combining marks": [
        "e\u0301 o\u0308\u0304 Z\u0335\u0351a\u0321\u035el\u0336g\u0340o\u0489 नमस्ते दुनिया ก็ที่ สวัสดีครับ",
        "Å\u030a \u1100\u1161\u11a8 வணக்கம் ক্ষ",
    ],
    "odd characters": [
        "\ufffd\ufffe\u0000\u0001\u007f\u0085\u00a0\u00ad\u2028\ufeff",
        "▁▁ <0x41> <0xE2> Ġ Ċ <s></s> [INST] <|im_end|>",
    ],
}


@dataclass(frozen=True, slots=True)
class Real:
    """A tokenizer, and how its ids of a text are found."""

    tokenizer: Tokenizer
    encode: Callable[[str], list[int]]


@cache
def texts() -> tuple[str, ...]:
    """English, code, and everything in SAMPLES."""
    samples = [text for texts in SAMPLES.values() for text in texts]
    paths = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "backend_client").rglob("*.py"))]
    return (*samples, *(path.read_text() for path in paths))


def real(tokenizer: Tokenizer) -> Real:
    """A tokenizer that encodes itself."""
    return Real(tokenizer, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


@cache
def tekken() -> Real:
    """Byte-level BPE with 131,072 ids, the first 1,000 of them special.

    It has no merges: `tokenizers` decodes, mistral-common encodes.
    """
    # Takes half a second, which is not for those who only collect the tests.
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    original = Tekkenizer.from_file(TEKKEN)
    described = json.loads(TEKKEN.read_text())
    num_special = described["config"]["default_num_special_tokens"]
    special = [original.id_to_piece(token_id) for token_id in range(num_special)]
    vocab = {piece: token_id for token_id, piece in enumerate(special)}
    for entry in described["vocab"][: original.n_words - num_special]:
        data = base64.b64decode(entry["token_bytes"])
        vocab["".join(CHARACTER_OF_BYTE[byte] for byte in data)] = num_special + entry["rank"]
    assert len(vocab) == original.n_words, "no two ids are one piece"
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return Real(tokenizer, lambda text: original.encode(text, bos=False, eos=False))


@cache
def sentencepiece(strip: int) -> Tokenizer:
    """Byte-fallback BPE with 32,768 ids; a leading space is stripped as for Llama 2, or not as for Gemma."""
    pieces = sentencepiece_model(SENTENCEPIECE.read_bytes()).pieces
    vocab = {piece.piece: token_id for token_id, piece in enumerate(pieces)}
    ranked = sorted(vocab.items(), key=lambda item: -pieces[item[1]].score)
    merges = [pair for piece, _ in ranked for pair in splits(piece, vocab)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    # Types 2 and 3 are what is unknown and what controls.
    tokenizer.add_special_tokens([piece.piece for piece in pieces if piece.type in (2, 3)])
    tokenizer.decoder = toy.byte_fallback_decoder(strip)
    if not strip:
        # As Gemma has them: not special, of layout and of markup.
        tokenizer.add_tokens(["\n\n", "▁▁▁", "<table>", AddedToken("<start▁of>", lstrip=True)])
    return tokenizer


def splits(piece: str, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges that make a piece, those of older halves first."""
    pairs = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
    known = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
    return sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))


def sentencepiece_model(data: bytes) -> Message:
    """The part of a SentencePiece model that names its pieces."""
    piece = (("piece", 1, Field.TYPE_STRING), ("score", 2, Field.TYPE_FLOAT), ("type", 3, Field.TYPE_INT32))
    table = {"Model": (("pieces", 1, "Piece"),), "Piece": piece}
    parsed: Message = classes("pieces", table, repeated={"pieces"})["Model"].FromString(data)
    return parsed


def train_byte_level(tokenizer: Tokenizer, special: Sequence[str]) -> Tokenizer:
    """Byte-level BPE behind whatever splits the text."""
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4000, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


@cache
def gpt2_style() -> Tokenizer:
    """Byte-level throughout, one special token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train_byte_level(tokenizer, ["<|endoftext|>"])


@cache
def llama3_style() -> Tokenizer:
    """A split by pattern, then bytes; 256 special tokens behind the vocabulary."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(WORDS, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    train_byte_level(tokenizer, [])
    reserved = [f"<|reserved_special_token_{number}|>" for number in range(252)]
    tokenizer.add_special_tokens(
        ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", *reserved]
    )
    return tokenizer


@cache
def qwen_style() -> Tokenizer:
    """As Llama 3 with composed characters, and added tokens of which some are not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(WORDS, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    train_byte_level(tokenizer, [])
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    # ASCII and é are characters of bytes, the rest are not: a piece of both kinds is its own text.
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "café 日本", "Ġodd", "é", "naïve"])
    return tokenizer


@cache
def byte_fallback_bpe() -> Tokenizer:
    """Trained on English alone: everything else is bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SAMPLES["English"] * 3, trainer)
    described = json.loads(tokenizer.to_str())
    described["model"] |= {"byte_fallback": True, "unk_token": "<unk>"}
    described["added_tokens"] = described["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.decoder = toy.byte_fallback_decoder(1)
    return tokenizer


@cache
def byte_fallback_unigram() -> Tokenizer:
    """Trained on English alone, the bytes appended."""
    tokenizer = unigram()
    described = json.loads(tokenizer.to_str())
    described["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    described["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.decoder = toy.byte_fallback_decoder(1)
    return tokenizer


@cache
def unigram() -> Tokenizer:
    """A decoder that no table knows."""
    return toy.unigram(((ROOT / "docs" / "architecture.md").read_text(),), 400)


@cache
def word_piece() -> Tokenizer:
    """BERT's: the decoder joins and tidies."""
    return toy.word_piece(texts(), 3000)
