"""POST /v1/completions: prompts as text or token ids in, one or many, and the JSON of choices out.

Sans-IO. Knows nothing about sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.fields.generation import (
    add_token_ids,
    assign,
    fill_request,
)
from enginewire.backend.frontends.http_api.openai.generation_request import (
    GenerationRequest,
    ask_for_prompt_ids,
    request_of,
    with_prompt_logprobs,
)
from enginewire.backend.frontends.http_api.openai.logprobs import CompletionRows, LogprobRows

MAX_PROMPTS: Final = 512
# OpenAI's default; every other endpoint goes on until the context is full.
DEFAULT_MAX_TOKENS: Final = 16
A_PROMPT: Final = "a string or a list of token ids"
PROMPTS: Final = f"{A_PROMPT}, or a list of either"


class CompletionEndpoint:
    """What is special about completions. See Endpoint."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    # An answer may have several prompts.
    tells_prompts_in_choices = True

    def read(self, body: Body) -> GenerationRequest:
        """Raises InvalidBody."""
        prompts = read_prompts(body)
        common = pb.PreprocessedRequest()
        fill_request(common, body)
        if not common.stop_conditions.HasField("max_tokens"):
            common.stop_conditions.max_tokens = max(DEFAULT_MAX_TOKENS, common.stop_conditions.min_tokens)
        echo = body.flag("echo")
        if (logprobs := body.integer("logprobs")) is not None:
            assign(common.output_options, "logprobs", logprobs, "logprobs")
        is_prompt_only = echo and body.integer("max_tokens") == 0
        if is_prompt_only:
            # An engine generates at least one token.
            common.stop_conditions.max_tokens = 1
        if echo:
            ask_for_prompt_ids(prompts)
            if logprobs is not None:
                common.output_options.prompt_logprobs = logprobs
        for prompt in prompts:
            prompt.request.MergeFrom(common)
        params = {"output_options.prompt_logprobs": "echo"} if echo else {}
        asked = with_prompt_logprobs(request_of(body, prompts, params), body)
        return replace(asked, echo=echo, is_prompt_only=is_prompt_only)

    def rows(self, asked: GenerationRequest, vocabulary: Vocabulary) -> LogprobRows | None:
        """Log-probabilities in this endpoint's form."""
        return CompletionRows(vocabulary, asked.row_form) if asked.with_logprobs else None

    def chunk(self, choice: Choice) -> dict[str, object]:
        """What is new in a choice."""
        return self.whole(choice)

    def whole(self, choice: Choice) -> dict[str, object]:
        """A choice that has ended."""
        text, logprobs = choice.take()
        fields: dict[str, object] = {
            "index": choice.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if choice.prompt_scores is not None:
            fields["prompt_logprobs"] = choice.prompt_scores
        return fields

    def beside(self, choices: Sequence[Choice]) -> Mapping[str, object]:
        """Nothing."""
        return {}


def read_prompts(body: Body) -> list[pb.BackendServiceGenerateRequest]:
    """A text, texts, token ids, or lists of token ids. Raises InvalidBody."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [pb.BackendServiceGenerateRequest(text=prompt)]
    items = checked("prompt", prompt, list, PROMPTS)
    if items and isinstance(items[0], int):
        return [token_prompt("prompt", items)]
    if not 0 < len(items) <= MAX_PROMPTS:
        raise InvalidBody("prompt", f"must be 1 to {MAX_PROMPTS} prompts")
    return [
        pb.BackendServiceGenerateRequest(text=item)
        if isinstance(item, str)
        else token_prompt(f"prompt[{place}]", checked(f"prompt[{place}]", item, list, A_PROMPT))
        for place, item in enumerate(items)
    ]


def token_prompt(field: str, items: Sequence[object]) -> pb.BackendServiceGenerateRequest:
    """A prompt of token ids. Raises InvalidBody."""
    asked = pb.BackendServiceGenerateRequest(token_ids=True)
    token_ids = [checked(f"{field}[{place}]", each, int) for place, each in enumerate(items)]
    add_token_ids(asked.request.token_ids, field, token_ids)
    return asked
