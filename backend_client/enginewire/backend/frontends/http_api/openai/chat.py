"""POST /v1/chat/completions: the conversation in, and the JSON of choices out.

Sans-IO. Knows nothing about sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.generation_fields import (
    Neutral,
    assign,
    fill_request,
    refuse_unsupported,
)
from enginewire.backend.frontends.http_api.openai.generation_request import (
    GenerationRequest,
    request_of,
    with_prompt_logprobs,
)
from enginewire.backend.frontends.http_api.openai.logprobs import ChatRows, LogprobRows
from enginewire.backend.prompting.prompts import MAX_MESSAGES

# A template writes the special tokens itself.
WRITTEN_BY_TEMPLATE: Final[Neutral] = {"add_special_tokens": (False,)}


class ChatEndpoint:
    """What is special about chat completions. See Endpoint."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    tells_prompts_in_choices = False

    def read(self, body: Body) -> GenerationRequest:
        """Raises InvalidBody."""
        refuse_echo(body)
        refuse_unsupported(body, WRITTEN_BY_TEMPLATE)
        asked = pb.BackendServiceGenerateRequest(chat=read_messages(body))
        fill_request(asked.request, body)
        params: dict[str, str] = {}
        # The younger name of max_tokens wins when both are given.
        if (most := body.integer("max_completion_tokens")) is not None:
            params["stop_conditions.max_tokens"] = "max_completion_tokens"
            assign(asked.request.stop_conditions, "max_tokens", most, "max_completion_tokens")
        top = body.integer("top_logprobs")
        if body.flag("logprobs"):
            params["output_options.logprobs"] = "logprobs" if top is None else "top_logprobs"
            assign(asked.request.output_options, "logprobs", top or 0, "top_logprobs")
        elif top:
            raise InvalidBody("top_logprobs", "only allowed when logprobs is true")
        return with_prompt_logprobs(request_of(body, [asked], params), body)

    def rows(self, asked: GenerationRequest, vocabulary: Vocabulary) -> LogprobRows | None:
        """Log-probabilities in this endpoint's form."""
        return ChatRows(vocabulary, asked.row_form) if asked.with_logprobs else None

    def chunk(self, choice: Choice) -> dict[str, object]:
        """What is new in a choice."""
        delta: dict[str, str] = {} if choice.is_begun else {"role": "assistant"}
        text, logprobs = choice.take()
        if text or delta:
            delta["content"] = text
        chunk: dict[str, object] = {
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }
        if choice.finish_reason is not None:
            chunk["stop_reason"] = choice.stop_reason
        return chunk

    def whole(self, choice: Choice) -> dict[str, object]:
        """A choice that has ended."""
        text, logprobs = choice.take()
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def beside(self, choices: Sequence[Choice]) -> Mapping[str, object]:
        """The prompt's log-probabilities, which vLLM tells once for all choices."""
        scores = choices[0].prompt_scores
        return {} if scores is None else {"prompt_logprobs": scores}


def refuse_echo(body: Body) -> None:
    """Raise InvalidBody where a prompt has no text of its own."""
    if body.flag("echo"):
        raise InvalidBody("echo", "not supported")


def read_messages(body: Body) -> pb.ChatPrompt:
    """The conversation. Raises InvalidBody."""
    messages = checked("messages", body.get("messages"), list)
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise InvalidBody("messages", f"must be 1 to {MAX_MESSAGES} messages")
    return pb.ChatPrompt(
        messages=[read_message(f"messages[{place}]", message) for place, message in enumerate(messages)]
    )


def read_message(field: str, value: object) -> pb.ChatMessage:
    """One message; its content is a string or a list of text parts. Raises InvalidBody."""
    message = Body(checked(field, value, dict))
    if message.get("tool_calls") or message.get("function_call"):
        raise InvalidBody(f"{field}.tool_calls", "not supported")
    return pb.ChatMessage(
        role=checked(f"{field}.role", message.get("role"), str),
        content=read_content(f"{field}.content", message.get("content")),
    )


def read_content(field: str, content: object) -> str:
    """The text of a message. Raises InvalidBody."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [Body(checked(field, part, dict)) for part in checked(field, content, list)]
    for place, part in enumerate(parts):
        if part.get("type") != "text":
            raise InvalidBody(f"{field}[{place}].type", "only text is supported")
    return "".join(
        checked(f"{field}[{place}].text", part.get("text"), str) for place, part in enumerate(parts)
    )
