"""POST /enginewire/generate: what a page needs to show the engine's tokens beside the text.

Sans-IO. The body is that of a chat completion, or has `prompt` as a text; `logprobs` is a number of
alternatives. Knows nothing about sending.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.openai.answers.format import ModelFormats
from enginewire.backend.frontends.http_api.openai.chat import WRITTEN_BY_TEMPLATE, refuse_echo
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.conversation.images import take_images
from enginewire.backend.frontends.http_api.openai.conversation.messages import read_messages
from enginewire.backend.frontends.http_api.openai.fields.generation import (
    assign,
    fill_request,
    refuse_unsupported,
)
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest, request_of
from enginewire.backend.frontends.http_api.openai.logprobs import LogprobRows, Row, rows_of
from enginewire.backend.prompting.conversation import Conversation


class TokenEndpoint:
    """Raw tokens with the text that may be shown and the text that is withheld. See Endpoint."""

    id_prefix = "page"
    whole_object = "enginewire.tokens"
    chunk_object = "enginewire.tokens"
    tells_prompts_in_choices = False

    def __init__(self, formats: ModelFormats | None = None) -> None:
        """`formats` say what the chat template can be given."""
        self._formats = formats or ModelFormats()

    def read(self, body: Body) -> GenerationRequest:
        """Raises InvalidBody."""
        refuse_echo(body)
        if body.get("prompt_logprobs") is not None:
            raise InvalidBody("prompt_logprobs", "not supported")
        asked = pb.BackendServiceGenerateRequest()
        conversation = None
        if (text := body.text("prompt")) is not None:
            asked.text = text
        else:
            refuse_unsupported(body, WRITTEN_BY_TEMPLATE)
            messages, images = take_images(read_messages(body), are_shown=self._formats.shows_images)
            conversation = Conversation(messages, images=images)
        fill_request(asked.request, body)
        if (logprobs := body.integer("logprobs")) is not None:
            assign(asked.request.output_options, "logprobs", logprobs, "logprobs")
        read = request_of(body, [asked], {"chat": "messages"})
        return replace(read, with_tokens=True, conversation=conversation)

    def rows(self, asked: GenerationRequest, vocabulary: Vocabulary) -> LogprobRows:
        """Every token, with log-probabilities or without."""
        return TokenRows(vocabulary)

    def chunk(self, choice: Choice) -> dict[str, object]:
        """What is new in a choice."""
        text, rows = choice.take()
        return {
            "index": choice.index,
            "text": text,
            **(rows or {}),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def whole(self, choice: Choice) -> dict[str, object]:
        """A choice that has ended."""
        return self.chunk(choice)

    def beside(self, choices: Sequence[Choice]) -> Mapping[str, object]:
        """Nothing."""
        return {}


class TokenRows(LogprobRows):
    """The tokens of one choice. See LogprobRows."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._tokens: list[dict[str, object]] = []
        self._withheld = ""

    def add(self, output: BackendOutput) -> None:
        """See LogprobRows."""
        self._withheld = output.withheld
        if output.logprobs is None:
            self._tokens += [self._token(token_id) for token_id in output.token_ids]
        else:
            self.add_rows(rows_of(output))

    def add_rows(self, rows: Iterable[Row]) -> None:
        """See LogprobRows."""
        for row in rows:
            top = [self._token(other) | {"logprob": value} for other, value in row.alternatives]
            self._tokens.append(self._token(row.token_id) | {"logprob": row.logprob, "top": top})

    def take(self) -> dict[str, object]:
        """See LogprobRows."""
        tokens, self._tokens = self._tokens, []
        return {"tokens": tokens, "withheld": self._withheld}

    def _token(self, token_id: int) -> dict[str, object]:
        """Bytes in hex: a token may be a part of a character."""
        return {
            "id": token_id,
            "text": self._vocabulary.token_text(token_id),
            "bytes": self._vocabulary.token_bytes(token_id).hex(" "),
        }
