"""From what a caller says to what an engine computes: text, a conversation or token ids.

Sans-IO. Holds the checks on the prompt; everything else in a request is checked by whoever honours it.
Knows nothing about engines, streams or faces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from enginewire import v1 as pb
from enginewire.backend.prompting.conversation import Conversation, Image

# No conversation is near this, and a template is slow.
MAX_MESSAGES: Final = 4096
MAX_INPUTS: Final = 2048
IMAGES: Final = "image_url"
"""What the contract calls the parts that are images."""


class PromptTokenizer(Protocol):
    """The encoding side of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with what the tokenizer puts around every text. Raises ValueError."""
        ...

    def render(self, conversation: Conversation) -> str:
        """The prompt text of a conversation. Raises ValueError, and LookupError without a template."""
        ...


class InvalidPrompt(ValueError):
    """The prompt cannot be used; `field` is its path below the request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as text and as token ids. `text` is "" when the caller sent ids."""

    text: str
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class PromptFit:
    """How a prompt is made to fit: without the tokenizer's special tokens, or cut to `max_tokens`."""

    add_special_tokens: bool = True
    max_tokens: int | None = None
    keeps_end: bool = True

    def cut(self, token_ids: Sequence[int]) -> Sequence[int]:
        """What is left of the tokens."""
        if self.max_tokens is None or len(token_ids) <= self.max_tokens:
            return token_ids
        return token_ids[-self.max_tokens :] if self.keeps_end else token_ids[: self.max_tokens]


WHOLE_PROMPT: Final = PromptFit()


def preprocess(
    asked: pb.BackendServiceGenerateRequest,
    tokenizer: PromptTokenizer,
    conversation: Conversation | None = None,
    fit: PromptFit = WHOLE_PROMPT,
) -> tuple[pb.PreprocessedRequest, Prompt]:
    """The request for the backend and the prompt in it, which is `conversation` where there is one.

    Raises InvalidPrompt; `asked` stays as it is.
    """
    request = pb.PreprocessedRequest()
    request.CopyFrom(asked.request)
    if conversation is None:
        whole = read_prompt(asked, tokenizer, add_special_tokens=fit.add_special_tokens)
    else:
        whole = _rendered(conversation, tokenizer)
        show_images(request, conversation.images)
    prompt = Prompt(whole.text, fit.cut(whole.token_ids))
    request.token_ids[:] = prompt.token_ids
    return request, prompt


def show_images(request: pb.PreprocessedRequest, images: Sequence[Image]) -> None:
    """Add the images that the prompt has places for."""
    if images:
        request.multi_modal_data.add(part_type=IMAGES).items.extend(image.item for image in images)


def read_prompt(
    asked: pb.BackendServiceGenerateRequest, tokenizer: PromptTokenizer, *, add_special_tokens: bool = True
) -> Prompt:
    """The prompt, whatever its kind. Raises InvalidPrompt."""
    kind = asked.WhichOneof("prompt")
    if kind in ("text", "chat") and asked.request.token_ids:
        raise InvalidPrompt("token_ids", f"must be empty beside a {kind} prompt")
    if kind == "text":
        return _encoded("text", asked.text, tokenizer, add_special_tokens=add_special_tokens)
    if kind == "chat":
        return _from_chat(asked.chat, tokenizer)
    if kind == "token_ids" and asked.token_ids:
        return _from_token_ids(asked.request)
    raise InvalidPrompt("prompt", "must be one of text, chat and token_ids")


def encode_inputs(
    inputs: Sequence[str | Sequence[int]], tokenizer: PromptTokenizer, path: str
) -> list[Sequence[int]]:
    """Token ids of everything that is to be embedded. Raises InvalidPrompt; `path` names the inputs."""
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise InvalidPrompt(path, f"must be 1 to {MAX_INPUTS} inputs")
    encoded = []
    for place, each in enumerate(inputs):
        if not each:
            raise InvalidPrompt(f"{path}[{place}]", "must not be empty")
        if isinstance(each, str):
            each = _encoded(f"{path}[{place}]", each, tokenizer, add_special_tokens=True).token_ids
        encoded.append(each)
    return encoded


def characters_of(asked: pb.BackendServiceGenerateRequest) -> int:
    """How much text there is to tokenize."""
    return len(asked.text) + sum(len(message.content) for message in asked.chat.messages)


def _from_chat(chat: pb.ChatPrompt, tokenizer: PromptTokenizer) -> Prompt:
    if not 0 < len(chat.messages) <= MAX_MESSAGES:
        raise InvalidPrompt("chat.messages", f"must be 1 to {MAX_MESSAGES} messages")
    for place, message in enumerate(chat.messages):
        if not message.role:
            raise InvalidPrompt(f"chat.messages[{place}].role", "must not be empty")
    messages = [{"role": each.role, "content": each.content} for each in chat.messages]
    return _rendered(Conversation(messages), tokenizer)


def _rendered(conversation: Conversation, tokenizer: PromptTokenizer) -> Prompt:
    try:
        text = tokenizer.render(conversation)
    except (LookupError, ValueError) as error:
        raise InvalidPrompt("chat", str(error)) from error
    # The template writes the special tokens itself.
    return _encoded("chat", text, tokenizer, add_special_tokens=False)


def _from_token_ids(request: pb.PreprocessedRequest) -> Prompt:
    if not request.token_ids and not request.HasField("prompt_embeds"):
        raise InvalidPrompt("token_ids", "must not be empty")
    return Prompt("", request.token_ids)


def _encoded(field: str, text: str, tokenizer: PromptTokenizer, *, add_special_tokens: bool) -> Prompt:
    try:
        token_ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except ValueError as error:
        raise InvalidPrompt(field, str(error)) from error
    if not token_ids:
        raise InvalidPrompt(field, "must not be empty")
    return Prompt(text, token_ids)
