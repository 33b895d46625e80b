from __future__ import annotations

from hypothesis import given, strategies as st
from tokenizers import Tokenizer

from enginewire.server.engines.mocker.engine import MockerOptions
from enginewire.server.engines.mocker.tokenizer import EOS, byte_tokenizer

# Hypothesis tries the words of the code under test as well: those of special tokens have an id of their own.
ORDINARY = st.text().filter(lambda text: "<|" not in text)


@given(ORDINARY)
def test_the_tokenizer_knows_every_text(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


def test_the_tokenizer_hides_its_special_tokens() -> None:
    assert TOKENIZER.token_to_id("<|eos|>") == EOS
    assert TOKENIZER.decode([*b"hi", EOS]) == "hi"
    assert TOKENIZER.get_vocab_size() == MockerOptions().vocab_size


TOKENIZER = Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode())
