from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.prompting.conversation import Conversation
from enginewire.backend.prompting.prompts import MAX_MESSAGES, InvalidPrompt, Prompt, preprocess

BOS = 1


class ToyTokenizer:
    """One token per character; a template that names the roles."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self._refusal = refusal

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if len(text) > 1000:
            raise ValueError("too long")
        return [BOS] * (add_special_tokens and bool(text)) + [ord(character) for character in text]

    def render(self, conversation: Conversation) -> str:
        if self._refusal is not None:
            raise self._refusal
        turns = [f"{message['role']}:{message['content']};" for message in conversation.messages]
        return "".join(turns) + "assistant:" * conversation.add_generation_prompt


def asked(**fields: object) -> pb.BackendServiceGenerateRequest:
    return pb.BackendServiceGenerateRequest(**fields)


def conversation(*turns: tuple[str, str]) -> pb.ChatPrompt:
    return pb.ChatPrompt(messages=[pb.ChatMessage(role=role, content=content) for role, content in turns])


def test_text_is_encoded_with_the_special_tokens_of_the_tokenizer() -> None:
    request, prompt = preprocess(asked(text="ab"), ToyTokenizer())
    assert list(request.token_ids) == [BOS, 97, 98]
    assert prompt.text == "ab"


def test_a_conversation_is_rendered_and_gets_no_special_tokens_beside_those_of_the_template() -> None:
    request, prompt = preprocess(asked(chat=conversation(("system", "s"), ("user", "u"))), ToyTokenizer())
    assert prompt == Prompt("system:s;user:u;assistant:", [ord(c) for c in "system:s;user:u;assistant:"])
    assert list(request.token_ids) == prompt.token_ids


def test_token_ids_are_used_as_they_are() -> None:
    request, prompt = preprocess(
        asked(token_ids=True, request=pb.PreprocessedRequest(token_ids=[7, 8])), ToyTokenizer()
    )
    assert list(request.token_ids) == [7, 8]
    assert prompt.text == ""


def test_everything_else_in_the_request_stays_and_the_callers_message_is_not_changed() -> None:
    given = asked(text="a", request=pb.PreprocessedRequest(model="m", cache_salt="s"))
    before = given.SerializeToString()
    request, _ = preprocess(given, ToyTokenizer())
    assert (request.model, request.cache_salt) == ("m", "s")
    assert given.SerializeToString() == before


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (asked(), "prompt"),
        (asked(token_ids=False), "prompt"),
        (asked(token_ids=True), "token_ids"),
        (asked(text=""), "text"),
        (asked(text="x" * 1001), "text"),
        (asked(text="x", request=pb.PreprocessedRequest(token_ids=[1])), "token_ids"),
        (asked(chat=pb.ChatPrompt()), "chat.messages"),
        (asked(chat=conversation(*[("user", "")] * (MAX_MESSAGES + 1))), "chat.messages"),
        (asked(chat=conversation(("user", "a"), ("", "b"))), "chat.messages[1].role"),
        (asked(chat=conversation(("user", "x" * 1001))), "chat"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused_with_its_field(
    given: pb.BackendServiceGenerateRequest, field: str
) -> None:
    with pytest.raises(InvalidPrompt) as refusal:
        preprocess(given, ToyTokenizer())
    assert refusal.value.field == field
    assert str(refusal.value).startswith(f"{field}: ")


@pytest.mark.parametrize("refusal", [LookupError("no template"), ValueError("roles must alternate")])
def test_what_the_chat_template_refuses_is_an_invalid_prompt(refusal: Exception) -> None:
    with pytest.raises(InvalidPrompt, match=str(refusal)):
        preprocess(asked(chat=conversation(("user", "a"))), ToyTokenizer(refusal))


def test_embeddings_need_no_token_ids() -> None:
    embeddings = pb.PreprocessedRequest(prompt_embeds=pb.Tensor(shape=[1, 1]))
    request, _ = preprocess(asked(token_ids=True, request=embeddings), ToyTokenizer())
    assert request.HasField("prompt_embeds")
