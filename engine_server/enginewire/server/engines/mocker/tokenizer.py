"""The mocker's tokenizer: one token per byte, made in code, so that no file has to be shipped.

Token ids 0 to 255 are the bytes themselves; `BOS` and `EOS` follow. Written in the file format of
the `tokenizers` library, which this module does not need.
"""

from __future__ import annotations

import json

from enginewire.byte_level import CHARACTER_OF_BYTE
from enginewire.server.engines.interface import Tokenizer

BOS = 256
EOS = 257
VOCAB_SIZE = 258

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """The files `tokenizer.json` and `tokenizer_config.json`."""
    files = {"tokenizer.json": _tokenizer(), "tokenizer_config.json": _tokenizer_config()}
    return Tokenizer({name: json.dumps(content).encode() for name, content in files.items()})


def _tokenizer() -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [_special(BOS, "<|bos|>"), _special(EOS, "<|eos|>")],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": _vocabulary(), "merges": []},
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _special(token_id: int, content: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **flags}


def _vocabulary() -> dict[str, int]:
    """Byte-level vocabularies name each byte by one printable character."""
    return {CHARACTER_OF_BYTE[byte]: byte for byte in range(256)}
