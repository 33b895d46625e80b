"""What a caller asked for, whichever endpoint it came through.

Sans-IO. Knows nothing about JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.openai.answers.format import AnswerFormat
from enginewire.backend.frontends.http_api.openai.generation_fields import SCALARS, assign
from enginewire.backend.frontends.http_api.openai.guide_fields import guide_params
from enginewire.backend.prompting.conversation import Conversation

# What one answer may hold in all; how many a prompt may have is the engine's to say.
MAX_CHOICES: Final = 1024

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

# Path of the contract → key in the body, for what callers spell differently.
PARAMS: Final[Mapping[str, str]] = {
    "text": "prompt",
    "token_ids": "prompt",
    "chat.messages": "messages",
    "chat": "messages",
    "cache_salt": "cache_salt",
    "stop_conditions.max_thinking_tokens": "thinking_token_budget",
    "output_options.logprobs": "logprobs",
    "output_options.prompt_logprobs": "prompt_logprobs",
    **{f"{message}.{field}": key for key, (_, message, field) in SCALARS.items()},
}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One HTTP request. Each prompt has `n` choices; `params` overrides PARAMS.

    `include_usage` is about streams; a whole answer always has usage. `with_tokens` wants to know the text of
    each token. `echo` wants the prompt in front of the answer, `with_prompt_logprobs` its log-probabilities
    beside it, and `is_prompt_only` no answer at all. `request_id` is the caller's own, "" without one.
    A `conversation` is the only prompt there is, and `format` says what the text of its answers means.
    """

    prompts: Sequence[pb.BackendServiceGenerateRequest]
    is_stream: bool
    include_usage: bool
    params: Mapping[str, str]
    request_id: str = ""
    with_tokens: bool = False
    echo: bool = False
    with_prompt_logprobs: bool = False
    is_prompt_only: bool = False
    conversation: Conversation | None = None
    format: AnswerFormat | None = None

    @property
    def model(self) -> str:
        """The model as the caller named it; "" when it did not."""
        return self.prompts[0].request.model

    @property
    def n(self) -> int:
        """Choices of each prompt."""
        return max(1, self.prompts[0].request.sampling_options.n)

    @property
    def with_logprobs(self) -> bool:
        """Log-probabilities were asked for."""
        return self.prompts[0].request.output_options.HasField("logprobs")

    @property
    def is_scored(self) -> bool:
        """The engine is to tell the log-probabilities of the prompt."""
        return self.prompts[0].request.output_options.HasField("prompt_logprobs")

    def param_of(self, field: str) -> str | None:
        """The body's key for a path of the contract; None when no field is at fault."""
        params = {**PARAMS, **self.params}
        for path in sorted(params, key=len, reverse=True):
            if field.startswith(path):
                return params[path] + field.removeprefix(path)
        return field.rpartition(".")[2] or None


def request_of(
    body: Body, prompts: Sequence[pb.BackendServiceGenerateRequest], params: Mapping[str, str]
) -> GenerationRequest:
    """Add how to answer. Raises InvalidBody."""
    if max(1, prompts[0].request.sampling_options.n) * len(prompts) > MAX_CHOICES:
        raise InvalidBody("n", f"at most {MAX_CHOICES} choices over all prompts")
    is_stream = body.flag("stream")
    options = body.nested("stream_options")
    if options is not None and not is_stream:
        raise InvalidBody("stream_options", "only allowed when stream is true")
    if options is not None and options.flag("continuous_usage_stats"):
        raise InvalidBody("stream_options.continuous_usage_stats", "not supported")
    include_usage = options is not None and options.flag("include_usage")
    named = {**params, **guide_params(body)}
    return GenerationRequest(prompts, is_stream, include_usage, named, request_id_of(body))


def request_id_of(body: Body) -> str:
    """The caller's name for its request, which is part of the answer's. Raises InvalidBody."""
    request_id = body.text("request_id")
    if request_id is not None and not REQUEST_ID.fullmatch(request_id):
        raise InvalidBody("request_id", "must be 1 to 64 letters, digits, points, colons, lines and dashes")
    return request_id or ""


def with_prompt_logprobs(asked: GenerationRequest, body: Body) -> GenerationRequest:
    """Add what vLLM calls `prompt_logprobs`. Raises InvalidBody."""
    if (number := body.integer("prompt_logprobs")) is None:
        return asked
    if asked.is_stream:
        raise InvalidBody("prompt_logprobs", "not available in a stream")
    for prompt in asked.prompts:
        assign(prompt.request.output_options, "prompt_logprobs", number, "prompt_logprobs")
        # The backend has to say which tokens the prompt has become.
        prompt.request.output_options.return_tokens_as_token_ids = True
    return replace(asked, with_prompt_logprobs=True)
