"""The grammar of an answer, in the three ways that callers ask for one, as the contract's GuidedDecoding.

Sans-IO. Holds the keys of OpenAI (`response_format`) and of vLLM (`structured_outputs`, before that
`guided_…`). What a grammar means is the engine's to say. Knows nothing about other fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import orjson

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked

FIELD: Final = "sampling_options.guided_decoding"
RESPONSE_FORMAT: Final = "response_format"
STRUCTURED: Final = "structured_outputs."
GUIDED: Final = "guided_"

# The end of the key → field of the contract, for guides that are text.
TEXTS: Final[Mapping[str, str]] = {
    "regex": "regex",
    "grammar": "ebnf_grammar",
    "structural_tag": "structural_tag",
}
# Keys that say how, beside the key that says what.
MODIFIERS: Final[Mapping[str, str]] = {
    "guided_decoding_backend": "backend",
    "guided_whitespace_pattern": "whitespace_pattern",
    "structured_outputs.whitespace_pattern": "whitespace_pattern",
}
NO_WHITESPACE: Final = f"{STRUCTURED}disable_any_whitespace"
# What vLLM leaves then: a blank behind commas and colons.
BLANK: Final = " ?"
UNSUPPORTED: Final = ("disable_additional_properties", "disable_fallback")
KNOWN: Final = (
    *("choice", "disable_any_whitespace", "json", "json_object", "whitespace_pattern"),
    *TEXTS,
    *UNSUPPORTED,
)

# A guide and the key it came with.
Guide = tuple[pb.GuidedDecoding, str]


def fill_guide(request: pb.PreprocessedRequest, body: Body) -> None:
    """The one grammar that is asked for. Raises InvalidBody."""
    asked = flattened(body)
    guides = all_guides(body, asked)
    if len(guides) > 1:
        raise InvalidBody(guides[1][1], "only one grammar can be followed at a time")
    for guide, _ in guides:
        request.sampling_options.guided_decoding.CopyFrom(guide)
    for key, field in MODIFIERS.items():
        if (value := asked.text(key)) is not None:
            if not guides:
                raise InvalidBody(key, "only allowed beside a grammar")
            setattr(request.sampling_options.guided_decoding, field, value)
    if asked.flag(NO_WHITESPACE):
        guided = request.sampling_options.guided_decoding
        if not guides or guided.HasField("whitespace_pattern"):
            raise InvalidBody(
                NO_WHITESPACE, "only allowed beside a grammar, and without a whitespace_pattern"
            )
        guided.whitespace_pattern = BLANK


def guide_params(body: Body) -> dict[str, str]:
    """Path of the contract → key in the body, for what an engine refuses of a guide."""
    asked = flattened(body)
    params: dict[str, str] = {}
    for guide, key in all_guides(body, asked):
        if key != RESPONSE_FORMAT:
            params |= {FIELD: key, f"{FIELD}.{guide.WhichOneof('guide')}": key}
    modified = {f"{FIELD}.{field}": key for key, field in MODIFIERS.items() if asked.get(key) is not None}
    if asked.flag(NO_WHITESPACE):
        modified[f"{FIELD}.whitespace_pattern"] = NO_WHITESPACE
    return {FIELD: RESPONSE_FORMAT, **params, **modified}


def all_guides(body: Body, asked: Body) -> list[Guide]:
    """Every grammar in a body; `asked` is the body flattened. Raises InvalidBody."""
    return [*response_format_guides(body), *guides_in(asked, STRUCTURED), *guides_in(asked, GUIDED)]


def flattened(body: Body) -> Body:
    """The body with what is in `structured_outputs` under keys of its own. Raises InvalidBody."""
    nested = body.nested("structured_outputs")
    inner = [] if nested is None else nested.items()
    for key, value in inner:
        if key not in KNOWN or (key in UNSUPPORTED and value not in (None, False)):
            raise InvalidBody(f"{STRUCTURED}{key[:40]}", "not supported")
    return Body({**dict(body.items()), **{f"{STRUCTURED}{key}": value for key, value in inner}})


def response_format_guides(body: Body) -> list[Guide]:
    """The grammar that `response_format` asks for; none for plain text. Raises InvalidBody."""
    asked = body.nested(RESPONSE_FORMAT)
    kind = asked.get("type") if asked is not None else "text"
    if asked is None or kind == "text":
        return []
    if kind == "json_object":
        return [(pb.GuidedDecoding(json_object=True), RESPONSE_FORMAT)]
    if kind == "structural_tag":
        return [(pb.GuidedDecoding(structural_tag=json_text(asked)), RESPONSE_FORMAT)]
    described = asked.nested("json_schema")
    schema = None
    if described is not None:
        described.text("name"), described.flag("strict")
        schema = described.nested("schema")
    if kind != "json_schema" or schema is None:
        kinds = "text, json_object, structural_tag, or json_schema with a schema"
        raise InvalidBody(RESPONSE_FORMAT, f"must be {kinds}")
    return [(pb.GuidedDecoding(json_schema=json_text(schema)), RESPONSE_FORMAT)]


def guides_in(asked: Body, prefix: str) -> Iterator[Guide]:
    """The grammars under keys with a prefix. Raises InvalidBody."""
    for end, field in TEXTS.items():
        if (text := asked.text(prefix + end)) is not None:
            guide = pb.GuidedDecoding()
            setattr(guide, field, text)
            yield guide, prefix + end
    if (schema := asked.get(f"{prefix}json")) is not None:
        yield pb.GuidedDecoding(json_schema=schema_text(f"{prefix}json", schema)), f"{prefix}json"
    if asked.get(f"{prefix}choice") is not None:
        if not (choices := asked.strings(f"{prefix}choice")):
            raise InvalidBody(f"{prefix}choice", "must not be empty")
        yield pb.GuidedDecoding(choice=pb.GuidedChoice(choices=choices)), f"{prefix}choice"
    if asked.flag(f"{prefix}json_object"):
        yield pb.GuidedDecoding(json_object=True), f"{prefix}json_object"


def schema_text(key: str, schema: object) -> str:
    """A schema that comes as an object or as text. Raises InvalidBody."""
    return schema if isinstance(schema, str) else json_text(Body(checked(key, schema, dict)))


def json_text(schema: Body) -> str:
    """A schema as JSON text."""
    return orjson.dumps(dict(schema.items())).decode()
