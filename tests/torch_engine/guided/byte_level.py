"""A byte-level tokenizer for the tiny random models."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models

from tests.torch_engine.tiny import VOCAB

BOS, EOS = 0, 1


def byte_level_tokenizer() -> tokenizers.Tokenizer:
    """Two special tokens, the printable ASCII characters, and pairs of them."""
    characters = [chr(code) for code in range(0x21, 0x7F)] + ["Ġ", "Ċ"]
    pairs = ['{"', '":', '",', "tr", "ue", "fa", "ls", "10", "42", "ok"]
    vocab = {token: i + 2 for i, token in enumerate(characters + pairs)}
    merges = [(pair[0], pair[1]) for pair in pairs]
    tokenizer = tokenizers.Tokenizer(models.BPE({"<s>": BOS, "</s>": EOS, **vocab}, merges))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.decoder = decoders.ByteLevel()
    assert tokenizer.get_vocab_size() < VOCAB
    return tokenizer


TOKENIZER = byte_level_tokenizer()
