import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from enginewire.backend.prompting import tokenizer as tokenizer_module
from enginewire.backend.prompting.tokenizer import (
    BackendTokenizer,
    CannotEncode,
    InvalidTokenizer,
    TextTooLong,
)
from tests.backend.decoding import toy_tokenizers as toy

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"


def files(**changes: object) -> dict[str, bytes]:
    config = {"bos_token": None, "eos_token": {"content": "<|eos|>"}, "chat_template": TEMPLATE, **changes}
    return {
        "tokenizer.json": toy.byte_level().to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "generation_config.json": b'{"eos_token_id": [1, 2]}',
    }


def test_text_survives_encoding_and_decoding() -> None:
    tokenizer = BackendTokenizer.from_files(files())
    assert tokenizer.decode(tokenizer.encode("日本 stream")) == "日本 stream"


def test_the_files_name_every_end_of_sequence_id() -> None:
    tokenizer = BackendTokenizer.from_files(files())
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("", "<|eos|>")
    assert tokenizer.eos_token_ids == {0, 1, 2}


def test_a_conversation_is_rendered_and_encoded() -> None:
    tokenizer = BackendTokenizer.from_files(files())
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text == "user: hi<|eos|>"
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids[-1] == 0


def test_the_template_file_wins_over_the_configuration() -> None:
    tokenizer = BackendTokenizer.from_files(files() | {"chat_template.jinja": b"from the file"})
    assert tokenizer.apply_chat_template([]) == "from the file"


def test_the_older_file_of_a_processor_wins_over_the_configuration() -> None:
    older = {"chat_template.json": json.dumps({"chat_template": "older"}).encode()}
    assert BackendTokenizer.from_files(files() | older).apply_chat_template([]) == "older"
    both = files() | older | {"chat_template.jinja": b"from the file"}
    assert BackendTokenizer.from_files(both).apply_chat_template([]) == "from the file"


def test_of_several_templates_the_default_is_used() -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert BackendTokenizer.from_files(files(chat_template=named)).apply_chat_template([]) == "plain"


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(LookupError, match="no chat template"):
        BackendTokenizer.from_files(files(chat_template=None)).apply_chat_template([])


def test_a_folder_gives_what_its_files_give(tmp_path: Path) -> None:
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    tokenizer = BackendTokenizer.from_folder(tmp_path)
    assert tokenizer.encode("stream") == BackendTokenizer.from_files(files()).encode("stream")


def test_truncation_and_padding_of_the_file_do_not_apply() -> None:
    truncating = Tokenizer.from_str(toy.byte_level().to_str())
    truncating.enable_truncation(2)
    truncating.enable_padding(length=8)
    tokenizer = BackendTokenizer.from_files({"tokenizer.json": truncating.to_str().encode()})
    assert tokenizer.decode(tokenizer.encode("abcdef")) == "abcdef"


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"tokenizer.json": b"{"}, "tokenizer.json"),
        ({"tokenizer.json": b"\xff"}, "tokenizer.json"),
        ({"tokenizer_config.json": b"["}, "tokenizer_config.json"),
        ({"tokenizer_config.json": b"[]"}, "tokenizer_config.json: not an object"),
        ({"tokenizer_config.json": b"[" * 100_000}, "tokenizer_config.json"),
        ({"generation_config.json": b"\xff"}, "generation_config.json"),
        ({"chat_template.jinja": b"\xff"}, "chat_template.jinja"),
    ],
)
def test_a_broken_file_is_named(broken: dict[str, bytes], named: str) -> None:
    with pytest.raises(InvalidTokenizer, match=named):
        BackendTokenizer.from_files(files() | broken)


def test_without_tokenizer_json_there_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InvalidTokenizer, match=r"tokenizer\.json is missing"):
        BackendTokenizer.from_folder(tmp_path)


def test_sizes_are_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tokenizer = BackendTokenizer.from_files(files())
    (tmp_path / "tokenizer.json").write_bytes(files()["tokenizer.json"])
    monkeypatch.setattr(tokenizer_module, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(tokenizer_module, "MAX_TEXT_CHARS", 3)
    with pytest.raises(InvalidTokenizer, match="at most 100"):
        BackendTokenizer.from_files(files())
    with pytest.raises(InvalidTokenizer, match="at most 100"):
        BackendTokenizer.from_folder(tmp_path)
    with pytest.raises(TextTooLong, match="at most 3"):
        tokenizer.encode("abcd")


def test_a_text_at_which_the_library_fails_is_refused_without_being_quoted() -> None:
    tokenizer = BackendTokenizer(Tokenizer(models.WordLevel({"a": 0}, unk_token="<unk>")))
    with pytest.raises(CannotEncode, match=r"^the tokenizer cannot encode this text$"):
        tokenizer.encode("secret")
