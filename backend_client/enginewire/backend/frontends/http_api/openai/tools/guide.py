"""The grammar of an answer that must call a tool, or that has a grammar of its own beside its calls.

Sans-IO. Knows nothing about fields of requests beyond the one that a grammar comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import InvalidBody
from enginewire.backend.frontends.http_api.openai.fields.guide import BLANK, Guide
from enginewire.backend.frontends.http_api.openai.tools.fields import CHOICE, TOOLS, AskedTools, Tool
from enginewire.backend.parsing.call_object import ARGUMENTS, NAME
from enginewire.backend.parsing.formats import CallTag

PARAMETERS = ARGUMENTS[-1]
# Between calls with nothing else between them.
SEPARATOR = "\n"
NO_GRAMMAR = "no grammar for the format of this model; tool_choice required has one"
ANY_OBJECT: Mapping[str, object] = {"type": "object"}


def tool_guide(asked: AskedTools, tag: CallTag | None, answer: Guide | None = None) -> Guide | None:
    """The grammar, and the field that it comes from; None where calls are free. Raises InvalidBody.

    `tag` is what the model writes around a call, where it can be told. `answer` is the grammar of an answer
    without calls.
    """
    if asked.only:
        return _schema_guide(asked.schemas[asked.only])
    if asked.is_required:
        return _schema_guide(list_schema(asked))
    strict = next((place for place, tool in enumerate(asked.tools) if tool.is_strict), None)
    if strict is None and answer is None:
        return None
    field = answer[1] if answer is not None else f"{TOOLS}[{strict}].function.strict"
    if tag is None:
        raise InvalidBody(field, NO_GRAMMAR)
    calls = text_with_calls(asked, tag) if answer is None else answer_or_calls(asked, tag, answer)
    described = {"type": "structural_tag", "format": calls}
    return pb.GuidedDecoding(structural_tag=orjson.dumps(described).decode()), field


def text_with_calls(asked: AskedTools, tag: CallTag) -> Mapping[str, object]:
    """Free text with calls, those of strict tools by their schemas. As xgrammar describes it."""
    return {
        "type": "triggered_tags",
        "triggers": [tag.trigger],
        "tags": call_tags(asked, tag),
        "stop_after_first": not asked.is_parallel,
    }


def answer_or_calls(asked: AskedTools, tag: CallTag, answer: Guide) -> Mapping[str, object]:
    """Either an answer in JSON or calls. As xgrammar describes it. Raises InvalidBody."""
    guide, field = answer
    is_plain = not guide.backend and (
        guide.whitespace_pattern == BLANK or not guide.HasField("whitespace_pattern")
    )
    if guide.WhichOneof("guide") not in ("json_schema", "json_object") or not is_plain:
        raise InvalidBody(
            field, "only a plain one for JSON is allowed beside tools, unless tool_choice is none"
        )
    schema = orjson.loads(guide.json_schema) if guide.json_schema else ANY_OBJECT
    calls = {
        "type": "tags_with_separator",
        "tags": call_tags(asked, tag),
        "separator": SEPARATOR,
        "at_least_one": True,
        "stop_after_first": not asked.is_parallel,
    }
    return {"type": "or", "elements": [_json_format(schema), calls]}


def call_tags(asked: AskedTools, tag: CallTag) -> Sequence[Mapping[str, object]]:
    """One tag for each tool."""
    return [
        {
            "begin": tag.begin.replace("NAME", tool.name),
            "content": _json_format(tool.parameters if tool.is_strict else ANY_OBJECT) | {"style": tag.style},
            "end": tag.end,
        }
        for tool in asked.tools
    ]


def _json_format(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1}


def list_schema(asked: AskedTools) -> Mapping[str, object]:
    """At least one call of any of the tools."""
    calls = [call_schema(place, tool) for place, tool in enumerate(asked.tools)]
    schema: dict[str, object] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": calls},
        "$defs": {
            definition_name(place): moved(tool.parameters, place) for place, tool in enumerate(asked.tools)
        },
    }
    return schema if asked.is_parallel else {**schema, "maxItems": 1}


def call_schema(place: int, tool: Tool) -> Mapping[str, object]:
    """One call, as JsonCalls reads it."""
    return {
        "type": "object",
        "properties": {
            NAME: {"type": "string", "enum": [tool.name]},
            PARAMETERS: {"$ref": f"#/$defs/{definition_name(place)}"},
        },
        "required": [NAME, PARAMETERS],
        "additionalProperties": False,
    }


def definition_name(place: int) -> str:
    """Under which the parameters of a tool stand."""
    return f"tool{place}"


def moved(schema: object, place: int) -> object:
    """A schema whose references lead to where it stands now."""
    if isinstance(schema, list):
        return [moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"#/$defs/{definition_name(place)}{value[1:]}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else moved(value, place)
        for key, value in schema.items()
    }


def _schema_guide(schema: Mapping[str, object]) -> Guide:
    # Without a pattern for white space: an engine may have one for all requests, and refuse others.
    return pb.GuidedDecoding(json_schema=orjson.dumps(schema).decode()), CHOICE
