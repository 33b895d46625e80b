"""The model's tokenizer, as the backend uses it.

Holds loading from the files an engine offers, encoding, and the way to the vocabulary and the chat
template. Knows nothing about requests and nothing about where the files came from; imports no
transformers and runs no code from a model folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from enginewire.backend.decoding.detokenizer import DecodeError, is_of_library
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.prompting.chat_template import ChatTemplate
from enginewire.backend.prompting.conversation import Conversation

# What GetTokenizer offers and this module reads; tokenizer.json alone is required.
FILE_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
# The largest published tokenizer.json has about 35 MB.
MAX_FILE_BYTES = 128 * 1024 * 1024
MAX_TEXT_CHARS = 8 * 1024 * 1024


class InvalidTokenizer(ValueError):
    """The files do not make a tokenizer; the message names the file."""


class TextTooLong(ValueError):
    """A text over MAX_TEXT_CHARS."""


class CannotEncode(ValueError):
    """A text at which the tokenizer failed."""


class BackendTokenizer:
    """Text to ids, ids to text, messages to text. Shared by all requests; safe between threads.

    `eos_token_ids` has every id the files call end of sequence, `bos_token` and `eos_token` the texts
    ("" when there is none). `chat_template` is None for a model without one, and `tool_template` the one
    for conversations with tools, mostly the same.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        bos_token: str = "",
        eos_token: str = "",
        eos_token_ids: frozenset[int] = frozenset(),
        chat_template: ChatTemplate | None = None,
        tool_template: ChatTemplate | None = None,
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.eos_token_ids = eos_token_ids
        self.chat_template = chat_template
        self.tool_template = tool_template or chat_template

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> BackendTokenizer:
        """From name → content. Raises InvalidTokenizer."""
        tokenizer = read_tokenizer(files)
        config = read_json(files, "tokenizer_config.json")
        names = {**read_json(files, "special_tokens_map.json"), **config}
        bos_token, eos_token = token_text(names.get("bos_token")), token_text(names.get("eos_token"))
        eos_ids = set(read_ids(read_json(files, "generation_config.json").get("eos_token_id")))
        if (eos_id := tokenizer.token_to_id(eos_token)) is not None:
            eos_ids.add(eos_id)
        return cls(
            tokenizer,
            bos_token=bos_token,
            eos_token=eos_token,
            eos_token_ids=frozenset(eos_ids),
            chat_template=read_template(files, config, names),
            tool_template=read_template(files, config, names, "tool_use"),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> BackendTokenizer:
        """From a model folder. Raises InvalidTokenizer."""
        return cls.from_files(read_files(folder))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text. Raises TextTooLong and CannotEncode."""
        if len(text) > MAX_TEXT_CHARS:
            raise TextTooLong(f"{len(text)} characters, at most {MAX_TEXT_CHARS} are accepted")
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except BaseException as error:
            if not is_of_library(error):
                raise
            # What the library says may quote the text.
            raise CannotEncode("the tokenizer cannot encode this text") from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence. Raises DecodeError."""
        try:
            return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            if not is_of_library(error):
                raise
            raise DecodeError("the tokenizer cannot decode these tokens") from error

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it. Raises LookupError with the place of one it has not."""
        pieces = []
        for place, token_id in enumerate(token_ids):
            # The library takes 32 bits and no more.
            piece = self._tokenizer.id_to_token(token_id) if 0 <= token_id < 2**32 else None
            if piece is None:
                raise LookupError(place)
            pieces.append(piece)
        return pieces

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """The ids of a conversation; the template writes the special tokens. Raises ChatTemplateError."""
        text = self.apply_chat_template(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, add_special_tokens=False)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt of messages. Raises ChatTemplateError, and LookupError without a template."""
        return self.render(Conversation(messages, add_generation_prompt=add_generation_prompt))

    def render(self, conversation: Conversation) -> str:
        """The prompt of a conversation. Raises ChatTemplateError, and LookupError without a template."""
        template = self.tool_template if conversation.tools else self.chat_template
        if template is None:
            raise LookupError("this model has no chat template")
        return conversation.render(template)


def read_tokenizer(files: Mapping[str, bytes]) -> Tokenizer:
    """The tokenizer of tokenizer.json. Raises InvalidTokenizer."""
    for name, content in files.items():
        check_size(name, len(content))
    if "tokenizer.json" not in files:
        raise InvalidTokenizer("tokenizer.json is missing")
    try:
        return Tokenizer.from_buffer(files["tokenizer.json"])
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise InvalidTokenizer(f"tokenizer.json: {error}") from error


def read_template(
    files: Mapping[str, bytes],
    config: Mapping[str, object],
    names: Mapping[str, object],
    name: str = "default",
) -> ChatTemplate | None:
    """The chat template, from a file of its own or from the configuration, which may have several by name.

    `chat_template.json` is where models that take images had it first.
    """
    template = {**config, **read_json(files, "chat_template.json")}.get("chat_template")
    if "chat_template.jinja" in files:
        template = decode_text("chat_template.jinja", files["chat_template.jinja"])
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get(name)
    if not isinstance(template, str):
        return None
    tokens = {name: token_text(value) for name, value in names.items() if name.endswith("_token")}
    return ChatTemplate(template, tokens)


def read_json(files: Mapping[str, bytes], name: str) -> dict[str, object]:
    """The object in a file, empty when the file is absent. Raises InvalidTokenizer."""
    if name not in files:
        return {}
    try:
        value = json.loads(decode_text(name, files[name]))
    except (ValueError, RecursionError) as error:
        raise InvalidTokenizer(f"{name}: {error}") from error
    if not isinstance(value, dict):
        raise InvalidTokenizer(f"{name}: not an object")
    return value


def read_ids(value: object) -> list[int]:
    """One id or a list of ids."""
    ids = value if isinstance(value, list) else [value]
    return [token_id for token_id in ids if isinstance(token_id, int)]


def token_text(value: object) -> str:
    """A special token of a configuration: its text, an object with `content`, or null."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def decode_text(name: str, content: bytes) -> str:
    """UTF-8 content. Raises InvalidTokenizer."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidTokenizer(f"{name}: {error}") from error


def read_files(folder: Path) -> dict[str, bytes]:
    """Those of a tokenizer's files that are in a folder. Raises InvalidTokenizer."""
    paths = [path for name in FILE_NAMES if (path := folder / name).is_file()]
    for path in paths:
        check_size(path.name, path.stat().st_size)
    return {path.name: path.read_bytes() for path in paths}


def check_size(name: str, num_bytes: int) -> None:
    """Raise InvalidTokenizer for a file no tokenizer has."""
    if num_bytes > MAX_FILE_BYTES:
        raise InvalidTokenizer(f"{name}: {num_bytes} bytes, at most {MAX_FILE_BYTES} are accepted")
