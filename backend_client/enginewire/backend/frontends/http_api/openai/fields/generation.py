"""From the fields that both endpoints share to a PreprocessedRequest, and back to the field at fault.

Sans-IO. Holds the tables of what is passed on and of what this server cannot do. Ranges are left to the
engine, which knows them. Knows nothing about prompts and grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableSequence, Sequence
from typing import Final

import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.openai.fields.guide import fill_guide
from enginewire.field_rules import rules_of

# Fields that change the answer, each with the values that do not.
Neutral = Mapping[str, tuple[object, ...]]

Reader = Callable[[Body, str], float | int | bool | None]

# Key in the body → reader, message and field of the contract. Below the line: what vLLM adds to OpenAI.
SCALARS: Final[Mapping[str, tuple[Reader, str, str]]] = {
    "max_tokens": (Body.integer, "stop_conditions", "max_tokens"),
    "n": (Body.integer, "sampling_options", "n"),
    "temperature": (Body.number, "sampling_options", "temperature"),
    "top_p": (Body.number, "sampling_options", "top_p"),
    "presence_penalty": (Body.number, "sampling_options", "presence_penalty"),
    "frequency_penalty": (Body.number, "sampling_options", "frequency_penalty"),
    "best_of": (Body.integer, "sampling_options", "best_of"),
    # ---
    "top_k": (Body.integer, "sampling_options", "top_k"),
    "min_p": (Body.number, "sampling_options", "min_p"),
    "repetition_penalty": (Body.number, "sampling_options", "repetition_penalty"),
    "length_penalty": (Body.number, "sampling_options", "length_penalty"),
    "use_beam_search": (Body.flag, "sampling_options", "use_beam_search"),
    "include_stop_str_in_output": (Body.flag, "sampling_options", "include_stop_str_in_output"),
    "min_tokens": (Body.integer, "stop_conditions", "min_tokens"),
    "ignore_eos": (Body.flag, "stop_conditions", "ignore_eos"),
    "stream_interval": (Body.integer, "output_options", "stream_interval"),
    "skip_special_tokens": (Body.flag, "output_options", "skip_special_tokens"),
    "priority": (Body.integer, "routing", "priority"),
}

# What would change the answer and cannot be done here: refused, unless the value changes nothing.
UNSUPPORTED: Final[Neutral] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "documents": ([],),
    "ec_transfer_params": ({},),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (True,),
    "kv_transfer_params": ({},),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "repetition_detection": (),
    "return_prompt_text": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "web_search_options": (),
}

# As in vLLM, which keeps it out of the way of caches further on.
MAX_SALT_CHARACTERS: Final = 1024
SEEDS: Final = range(-(2**63), 2**63)
UNLIMITED_THINKING: Final = -1
TOKEN_IDS: Final = range(2**32)


def refuse_unsupported(body: Body, unsupported: Neutral = UNSUPPORTED, served: Collection[str] = ()) -> None:
    """Raise InvalidBody for a field that would be ignored although it changes the answer.

    `served` are those that the endpoint reads itself.
    """
    for key, neutral in unsupported.items():
        value = body.get(key)
        if value is not None and value not in neutral and key not in served:
            allowed = " or ".join(orjson.dumps(each).decode() for each in neutral)
            raise InvalidBody(key, f"not supported; only {allowed} is" if neutral else "not supported")


def fill_request(request: pb.PreprocessedRequest, body: Body, served: Collection[str] = ()) -> None:
    """Everything but prompt, log-probabilities and what the endpoint has `served`. Raises InvalidBody."""
    refuse_unsupported(body, served=served)
    request.model = body.text("model") or ""
    for key, (read, message, field) in SCALARS.items():
        if body.get(key) is not None:
            assign(getattr(request, message), field, read(body, key), key)
    fill_lists(request, body)
    fill_seed(request, body)
    fill_salt(request, body)
    budget = body.integer("thinking_token_budget")
    if budget is not None and budget < UNLIMITED_THINKING:
        raise InvalidBody("thinking_token_budget", "must be at least 0, or -1 for no limit")
    if budget not in (None, UNLIMITED_THINKING):
        assign(request.stop_conditions, "max_thinking_tokens", budget, "thinking_token_budget")
    fill_guide(request, body)


def fill_seed(request: pb.PreprocessedRequest, body: Body) -> None:
    """OpenAI's seeds have a sign, the contract's have not. Raises InvalidBody."""
    if (seed := body.integer("seed")) is None:
        return
    if seed not in SEEDS:
        raise InvalidBody("seed", f"must be {SEEDS.start} to {SEEDS.stop - 1}")
    request.sampling_options.seed = seed % 2**64


def fill_salt(request: pb.PreprocessedRequest, body: Body) -> None:
    """Who may share a cached prefix with this request. Raises InvalidBody."""
    if (salt := body.text("cache_salt")) is None:
        return
    if not 0 < len(salt) <= MAX_SALT_CHARACTERS:
        raise InvalidBody("cache_salt", f"must be 1 to {MAX_SALT_CHARACTERS} characters")
    request.cache_salt = salt


def fill_lists(request: pb.PreprocessedRequest, body: Body) -> None:
    """Stops, biases and allowed tokens. Raises InvalidBody."""
    request.stop_conditions.stop.extend(body.strings("stop"))
    extend(request.stop_conditions.stop_token_ids, body, "stop_token_ids")
    extend(request.sampling_options.allowed_token_ids, body, "allowed_token_ids")
    # To the contract no list is every token.
    if body.get("allowed_token_ids") == []:
        raise InvalidBody("allowed_token_ids", "must not be empty")
    extend(request.output_options.logprob_token_ids, body, "logprob_token_ids")
    biases = body.nested("logit_bias")
    for token, bias in biases.items() if biases is not None else ():
        field = f"logit_bias.{token[:16]}"
        if not (token.isascii() and token.isdecimal()) or len(token) > len(str(2**32)):
            raise InvalidBody(field, "the key must be a token id, as a string of digits")
        assign(entry := request.sampling_options.logit_bias.add(), "token_id", int(token), field)
        assign(entry, "bias", checked_number(field, bias), field)


def checked_number(field: str, value: object) -> float:
    """A number. Raises InvalidBody."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return checked(field, value, float)


def assign(message: Message, field: str, value: object, key: str) -> None:
    """Set a field. Raises InvalidBody for a value outside the field's type."""
    try:
        setattr(message, field, value)
    except ValueError as error:
        raise InvalidBody(key, f"{bound_of(message, field, value)}, got {value}") from error


def bound_of(message: Message, field: str, value: object) -> str:
    """The end of a field's range that a whole number is beyond."""
    rule = rules_of(message.DESCRIPTOR)[field]  # type: ignore[arg-type]  # its stubs have a second Descriptor
    is_signed = rule.field.type == FieldDescriptor.TYPE_INT32
    if isinstance(value, int) and value > 0:
        return f"must be at most {2**31 - 1 if is_signed else 2**32 - 1}"
    return f"must be at least {max(-(2**31) if is_signed else 0, rule.min):.0f}"


def extend(ids: MutableSequence[int], body: Body, key: str) -> None:
    """Add token ids. Raises InvalidBody, also for ids outside the contract's type."""
    add_token_ids(ids, key, body.integers(key))


def add_token_ids(ids: MutableSequence[int], field: str, token_ids: Sequence[int]) -> None:
    """The same for ids that are read already."""
    try:
        ids.extend(token_ids)
    except ValueError as error:
        place, wrong = next((p, each) for p, each in enumerate(token_ids) if each not in TOKEN_IDS)
        raise InvalidBody(
            f"{field}[{place}]", f"must be a token id, 0 to {TOKEN_IDS[-1]}, got {wrong}"
        ) from error
