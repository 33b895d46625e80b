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
from enginewire.backend.frontends.http_api.openai.fields.generation import SCALARS, assign
from enginewire.backend.frontends.http_api.openai.fields.guide import guide_params
from enginewire.backend.frontends.http_api.openai.fields.tokenizer import (
    TokenizerFields,
    read_tokenizer_fields,
)
from enginewire.backend.frontends.http_api.openai.logprobs import RowForm
from enginewire.backend.prompting.conversation import Conversation

# What one answer may hold in all; how many a prompt may have is the engine's to say.
MAX_CHOICES: Final = 1024

NOTHING_TO_TOKENIZE: Final = TokenizerFields()

# The contract has a list where the body has an object.
LOGIT_BIAS: Final = re.compile(r"sampling_options\.logit_bias\[(\d{1,9})\]")

# The images of a conversation, and one of them.
IMAGES: Final = "multi_modal_data"
IMAGE: Final = re.compile(r"multi_modal_data\[0\]\.items\[(\d{1,9})\]")

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

# Path of the contract → key in the body, for what callers spell differently.
PARAMS: Final[Mapping[str, str]] = {
    "text": "prompt",
    "token_ids": "prompt",
    "chat.messages": "messages",
    "chat": "messages",
    "cache_salt": "cache_salt",
    "sampling_options.bad_words_token_ids": "bad_words",
    "sampling_options.logit_bias": "logit_bias",
    "stop_conditions.max_thinking_tokens": "thinking_token_budget",
    "output_options.logprobs": "logprobs",
    "output_options.logprob_token_ids": "logprob_token_ids",
    "output_options.prompt_logprobs": "prompt_logprobs",
    **{f"{message}.{field}": key for key, (_, message, field) in SCALARS.items()},
}
# What a conversation has become is not what its caller sent.
CHAT_PARAMS: Final = {"token_ids": "messages"}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One HTTP request. Each prompt has `n` choices; `params` overrides PARAMS.

    `include_usage` is about the end of streams, `has_usage_everywhere` about each event of them; a whole
    answer always has usage. `with_tokens` wants to know the text of each token, `with_token_ids` the ids of
    prompts and answers, and `names_tokens_by_id` ids in place of texts beside log-probabilities. `echo` wants
    the prompt in front of the answer, `with_prompt_logprobs` its log-probabilities beside it, and
    `is_prompt_only` no answer at all. `request_id` is the caller's own, "" without one. A `conversation` is
    the only prompt there is, and `format` says what the text of its answers means.
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
    has_usage_everywhere: bool = False
    with_token_ids: bool = False
    names_tokens_by_id: bool = False
    tokenizer_fields: TokenizerFields = NOTHING_TO_TOKENIZE
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
    def num_choices(self) -> int:
        """Choices of all prompts."""
        return self.n * len(self.prompts)

    @property
    def with_logprobs(self) -> bool:
        """Log-probabilities were asked for."""
        return self.prompts[0].request.output_options.HasField("logprobs")

    @property
    def row_form(self) -> RowForm:
        """How log-probabilities are shown."""
        return RowForm(self.names_tokens_by_id, self.prompts[0].request.output_options.logprob_token_ids)

    @property
    def is_scored(self) -> bool:
        """The engine is to tell the log-probabilities of the prompt."""
        return self.prompts[0].request.output_options.HasField("prompt_logprobs")

    def param_of(self, field: str) -> str | None:
        """The body's key for a path of the contract; None when no field is at fault."""
        if (bias := LOGIT_BIAS.match(field)) is not None:
            return self._bias_of(int(bias[1]))
        if field.startswith(IMAGES):
            return self._image_of(field)
        params = {**PARAMS, **({} if self.conversation is None else CHAT_PARAMS), **self.params}
        for path in sorted(params, key=len, reverse=True):
            if field.startswith(path):
                return params[path] + field.removeprefix(path)
        return field.rpartition(".")[2] or None

    def param_of_prompt(self, place: int, field: str) -> str | None:
        """The same for what one of the prompts was refused for."""
        param = self.param_of(field)
        if len(self.prompts) == 1 or param is None or not param.startswith("prompt"):
            return param
        return param.replace("prompt", f"prompt[{place}]", 1)

    def _image_of(self, field: str) -> str | None:
        """What is wrong with all of them is said of the first one."""
        images = () if self.conversation is None else self.conversation.images
        place = 0 if (found := IMAGE.match(field)) is None else int(found[1])
        return images[place].field if place < len(images) else None

    def _bias_of(self, place: int) -> str:
        biases = self.prompts[0].request.sampling_options.logit_bias
        return f"logit_bias.{biases[place].token_id}" if place < len(biases) else "logit_bias"


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
    include_usage = options is not None and options.flag("include_usage")
    has_usage_everywhere = options is not None and options.flag("continuous_usage_stats")
    if has_usage_everywhere and not include_usage:
        raise InvalidBody("stream_options.continuous_usage_stats", "only allowed with include_usage")
    if body.get("logprob_token_ids") and not prompts[0].request.output_options.HasField("logprobs"):
        raise InvalidBody("logprob_token_ids", "only allowed with logprobs")
    named = {**params, **guide_params(body)}
    with_token_ids = body.flag("return_token_ids")
    if with_token_ids or has_usage_everywhere:
        ask_for_prompt_ids(prompts)
    return GenerationRequest(
        prompts,
        is_stream,
        include_usage,
        named,
        request_id_of(body),
        has_usage_everywhere=has_usage_everywhere,
        with_token_ids=with_token_ids,
        names_tokens_by_id=body.flag("return_tokens_as_token_ids"),
        tokenizer_fields=read_tokenizer_fields(body),
    )


def ask_for_prompt_ids(prompts: Sequence[pb.BackendServiceGenerateRequest]) -> None:
    """The backend has to say which tokens the prompts have become."""
    for prompt in prompts:
        prompt.request.output_options.return_tokens_as_token_ids = True


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
    ask_for_prompt_ids(asked.prompts)
    return replace(asked, with_prompt_logprobs=True)
