"""The grammar of an answer that must call a tool, or whose calls must follow a strict schema.

Sans-IO. Knows nothing about fields of requests beyond the one that a grammar comes from.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import InvalidBody
from enginewire.backend.frontends.http_api.openai.fields.guide import Guide
from enginewire.backend.frontends.http_api.openai.tools.fields import CHOICE, TOOLS, AskedTools, Tool
from enginewire.backend.parsing.call_object import ARGUMENTS, NAME
from enginewire.backend.parsing.formats import CallTag

PARAMETERS = ARGUMENTS[-1]


def tool_guide(asked: AskedTools, tag: CallTag | None) -> Guide | None:
    """The grammar, and the field that it comes from; None where calls are free. Raises InvalidBody.

    `tag` is what the model writes around a call, where it can be told.
    """
    if asked.only:
        return _schema_guide(asked.schemas[asked.only])
    if asked.is_required:
        return _schema_guide(list_schema(asked))
    strict = next((place for place, tool in enumerate(asked.tools) if tool.is_strict), None)
    if strict is None:
        return None
    field = f"{TOOLS}[{strict}].function.strict"
    if tag is None:
        raise InvalidBody(field, "no grammar for the format of this model; tool_choice required has one")
    return pb.GuidedDecoding(structural_tag=orjson.dumps(tag_of(asked, tag)).decode()), field


def tag_of(asked: AskedTools, tag: CallTag) -> Mapping[str, object]:
    """Free text with calls, those of strict tools by their schemas. As xgrammar describes it."""
    return {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": [tag.trigger],
            "tags": [
                {
                    "begin": tag.begin.replace("NAME", tool.name),
                    "content": {
                        "type": "json_schema",
                        "json_schema": tool.parameters if tool.is_strict else {"type": "object"},
                        "style": tag.style,
                    },
                    "end": tag.end,
                }
                for tool in asked.tools
            ],
            "stop_after_first": not asked.is_parallel,
        },
    }


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
    return pb.GuidedDecoding(json_schema=orjson.dumps(schema).decode()), CHOICE
