"""POST /v1/chat/completions: the conversation in, and the JSON of choices out.

Sans-IO. Knows nothing about sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.openai.answers.format import ModelFormats
from enginewire.backend.frontends.http_api.openai.answers.message import message_piece, whole_message
from enginewire.backend.frontends.http_api.openai.chat_format import SHOWS_THINKING, with_format
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.conversation.fields import CONVERSATION, read_conversation
from enginewire.backend.frontends.http_api.openai.fields.generation import (
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
from enginewire.backend.frontends.http_api.openai.tools.fields import CHOICE, TOOLS, read_tools

# A template writes the special tokens itself.
WRITTEN_BY_TEMPLATE: Final[Neutral] = {"add_special_tokens": (False,)}
SERVED: Final = frozenset({*CONVERSATION, TOOLS, CHOICE, SHOWS_THINKING})


class ChatEndpoint:
    """What is special about chat completions. See Endpoint."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    tells_prompts_in_choices = False

    def __init__(self, formats: ModelFormats | None = None) -> None:
        """`formats` say what the model's answers mean, and what its chat template can be given."""
        self._formats = formats or ModelFormats()

    def read(self, body: Body) -> GenerationRequest:
        """Raises InvalidBody."""
        refuse_echo(body)
        refuse_unsupported(body, WRITTEN_BY_TEMPLATE)
        tools = read_tools(body)
        conversation = read_conversation(body, self._formats, tools)
        asked = pb.BackendServiceGenerateRequest()
        fill_request(asked.request, body, SERVED)
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
        read = with_prompt_logprobs(request_of(body, [asked], params), body)
        return with_format(replace(read, conversation=conversation), body, tools, self._formats)

    def rows(self, asked: GenerationRequest, vocabulary: Vocabulary) -> LogprobRows | None:
        """Log-probabilities in this endpoint's form."""
        return ChatRows(vocabulary, asked.row_form) if asked.with_logprobs else None

    def chunk(self, choice: Choice) -> dict[str, object]:
        """What is new in a choice."""
        is_first = not choice.is_begun
        delta, logprobs = choice.take_delta()
        chunk: dict[str, object] = {
            "index": choice.index,
            "delta": message_piece(delta, is_first=is_first),
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }
        if choice.finish_reason is not None:
            chunk["stop_reason"] = choice.stop_reason
        return chunk

    def whole(self, choice: Choice) -> dict[str, object]:
        """A choice that has ended."""
        delta, logprobs = choice.take_delta()
        return {
            "index": choice.index,
            "message": whole_message(delta, with_thinking=self._formats.thinking is not None),
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
