"""From the fields that both endpoints share to a PreprocessedRequest, and back to the field at fault.

Sans-IO. Holds the tables of what is passed on and of what this server cannot do. Ranges are left to the
engine, which knows them. Knows nothing about prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence
from typing import Final

import orjson

from backend_client.frontends.http_api.body import Body, InvalidBody, checked
from enginewire import v1 as pb

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
    "skip_special_tokens": (Body.flag, "output_options", "skip_special_tokens"),
    "priority": (Body.integer, "routing", "priority"),
}

# What would change the answer and cannot be done here: refused, unless the value changes nothing.
UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}

GUIDES: Final[Mapping[str, str]] = {
    "regex": "regex",
    "grammar": "ebnf_grammar",
    "structural_tag": "structural_tag",
}
MAX_GUIDES: Final = 1


def refuse_unsupported(body: Body) -> None:
    """Raise InvalidBody for a field that would be ignored although it changes the answer."""
    for key, neutral in UNSUPPORTED.items():
        value = body.get(key)
        if value is not None and value not in neutral:
            raise InvalidBody(key, "not supported")


def fill_request(request: pb.PreprocessedRequest, body: Body) -> None:
    """Everything but prompt and log-probabilities. Raises InvalidBody."""
    refuse_unsupported(body)
    request.model = body.text("model") or ""
    for key, (read, message, field) in SCALARS.items():
        if body.get(key) is not None:
            assign(getattr(request, message), field, read(body, key), key)
    fill_lists(request, body)
    if (seed := body.integer("seed")) is not None:
        # OpenAI's seeds have a sign, the contract's have not.
        assign(request.sampling_options, "seed", seed % 2**64, "seed")
    fill_guide(request, body)


def fill_lists(request: pb.PreprocessedRequest, body: Body) -> None:
    """Stops, biases and allowed tokens. Raises InvalidBody."""
    request.stop_conditions.stop.extend(body.strings("stop"))
    extend(request.stop_conditions.stop_token_ids, body, "stop_token_ids")
    extend(request.sampling_options.allowed_token_ids, body, "allowed_token_ids")
    biases = body.nested("logit_bias")
    for token, bias in biases.items() if biases is not None else ():
        field = f"logit_bias.{token[:16]}"
        if not (token.isascii() and token.isdecimal()) or len(token) > len(str(2**32)):
            raise InvalidBody(field, "the key must be a token id")
        assign(entry := request.sampling_options.logit_bias.add(), "token_id", int(token), field)
        assign(entry, "bias", checked_number(field, bias), field)


def fill_guide(request: pb.PreprocessedRequest, body: Body) -> None:
    """`response_format` of OpenAI or `structured_outputs` of vLLM. Raises InvalidBody."""
    guides = [*response_format_guides(body), *structured_output_guides(body)]
    if len(guides) > MAX_GUIDES:
        raise InvalidBody("response_format", "only one grammar can be followed at a time")
    for guide in guides:
        request.sampling_options.guided_decoding.CopyFrom(guide)


def response_format_guides(body: Body) -> list[pb.GuidedDecoding]:
    """The grammar that `response_format` asks for; none for plain text. Raises InvalidBody."""
    asked = body.nested("response_format")
    kind = asked.get("type") if asked is not None else "text"
    if asked is None or kind == "text":
        return []
    if kind == "json_object":
        return [pb.GuidedDecoding(json_object=True)]
    described = asked.nested("json_schema")
    schema = described.nested("schema") if described is not None else None
    if kind != "json_schema" or schema is None:
        raise InvalidBody("response_format", "must be text, json_object, or json_schema with a schema")
    return [pb.GuidedDecoding(json_schema=json_text(schema))]


def structured_output_guides(body: Body) -> list[pb.GuidedDecoding]:
    """The grammars in `structured_outputs`. Raises InvalidBody."""
    asked = body.nested("structured_outputs")
    if asked is None:
        return []
    guides = []
    for key, field in GUIDES.items():
        if (text := asked.text(key)) is not None:
            guides.append(guide := pb.GuidedDecoding())
            setattr(guide, field, text)
    if asked.get("json") is not None:
        schema = asked.get("json")
        text = schema if isinstance(schema, str) else json_text(Body(checked("json", schema, dict)))
        guides.append(pb.GuidedDecoding(json_schema=text))
    if choices := asked.strings("choice"):
        guides.append(pb.GuidedDecoding(choice=pb.GuidedChoice(choices=choices)))
    if asked.flag("json_object"):
        guides.append(pb.GuidedDecoding(json_object=True))
    return guides


def json_text(schema: Body) -> str:
    """A schema as JSON text."""
    return orjson.dumps(dict(schema.items())).decode()


def checked_number(field: str, value: object) -> float:
    """A number. Raises InvalidBody."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return checked(field, value, float)


def assign(message: object, field: str, value: object, key: str) -> None:
    """Set a field. Raises InvalidBody for a value outside the field's type."""
    try:
        setattr(message, field, value)
    except ValueError as error:
        raise InvalidBody(key, "out of range") from error


def extend(ids: MutableSequence[int], body: Body, key: str) -> None:
    """Add token ids. Raises InvalidBody, also for ids outside the contract's type."""
    token_ids = body.integers(key)
    try:
        ids.extend(token_ids)
    except ValueError as error:
        raise InvalidBody(key, "a token id is out of range") from error
