"""What each grammar library is known to follow, of JSON schemas and regular expressions.

A library that ignores a keyword without a word would let a wrong answer pass for a right one: a guide that
holds anything else than what is listed here is refused on its behalf. Measured with xgrammar 0.2.8 and
llguidance 1.9.1; `tests/torch_engine/guided/test_answers.py` judges what they make of it. Knows nothing
about compiling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from enginewire.server.engines.guides.schema import (
    InvalidGuide,
    Schema,
    excludes,
    found,
    is_off,
    required_names,
    rewritten,
    schemas_in,
    type_of,
    values_of,
    words,
)

ANNOTATIONS: Final = words(
    "$comment $defs $schema contentEncoding contentMediaType contentSchema default definitions deprecated"
    " description discriminator example examples externalDocs nullable readOnly title writeOnly xml"
)
"""Keywords that forbid nothing."""

XGRAMMAR_TYPED: Final = words(
    "additionalProperties exclusiveMaximum exclusiveMinimum items maxItems maxProperties maximum minItems"
    " minProperties minimum multipleOf prefixItems properties required type"
)
"""Followed beside a `type`, each other, and annotations."""
XGRAMMAR_ALONE: Final = ("$ref", "anyOf", "const", "enum", "oneOf")
"""Followed beside annotations alone; values also beside a `type`."""

LLGUIDANCE_LACKS: Final = words(
    "$dynamicRef $recursiveRef contains dependencies dependentRequired dependentSchemas else if"
    " maxContains minContains not propertyNames then unevaluatedItems unevaluatedProperties uniqueItems"
)
"""It would refuse them too, without saying where."""
LLGUIDANCE_FORMATS: Final = (
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
)


def schema_for_xgrammar(text: str) -> str:
    """The schema as the library gets it. Raises InvalidGuide for what it would ignore."""
    return _checked(parsed(text), "xgrammar")


def schema_for_llguidance(text: str) -> str:
    """The same for llguidance."""
    return _checked(parsed(text), "llguidance")


def parsed(text: str) -> object:
    """A schema. Raises InvalidGuide."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidGuide("must be JSON") from None
    if not isinstance(schema, dict | bool):
        raise InvalidGuide("must be an object or a boolean")
    return schema


def _checked(root: object, library: str) -> str:
    find = _not_by_xgrammar if library == "xgrammar" else _not_by_llguidance
    for pointer, schema in schemas_in(root):
        for keyword in find(schema, root):
            raise InvalidGuide(f"{keyword} at {pointer} is not followed by {library}")
    return json.dumps(rewritten(root, root))


def _not_by_xgrammar(schema: Schema, root: object) -> Iterator[str]:
    used = [keyword for keyword in schema if not _is_free(keyword, schema)]
    yield from (
        keyword for keyword in used if keyword not in XGRAMMAR_TYPED and keyword not in XGRAMMAR_ALONE
    )
    alone = next((keyword for keyword in XGRAMMAR_ALONE if keyword in used), None)
    if alone:
        fitting = {alone, "type"} if alone in ("const", "enum") else {alone}
        yield from (f"{keyword} beside {alone}" for keyword in used if keyword not in fitting)
        yield from _not_alone_by_xgrammar(alone, schema, root)
    elif used and not schema.get("type"):
        yield f"{used[0]} without type"
    yield from _not_typed_by_xgrammar(schema)


def _is_free(keyword: str, schema: Schema) -> bool:
    """True for a keyword that forbids nothing."""
    is_note = keyword in ANNOTATIONS or keyword.startswith("x-")
    return is_note or is_off(keyword, schema[keyword])


def _not_alone_by_xgrammar(word: str, schema: Schema, root: object) -> Iterator[str]:
    if word == "oneOf" and not excludes(schema[word], root):
        yield "oneOf of alternatives that may overlap"
    elif word == "anyOf" and not schema[word]:
        yield word
    elif word == "$ref" and found(str(schema[word]), root) is None:
        yield f"{word} to another place than #/…"
    elif "type" in schema and not all(
        _is_of_type(value, schema["type"]) for value in values_of(schema) or ()
    ):
        yield f"{word} of other types than type"


def _is_of_type(value: object, stated: object) -> bool:
    types = stated if isinstance(stated, list) else [stated]
    return type_of(value) in types or (type_of(value) == "integer" and "number" in types)


def _not_typed_by_xgrammar(schema: Schema) -> Iterator[str]:
    others = schema.get("additionalProperties")
    properties = schema.get("properties")
    if properties and others:
        yield "additionalProperties beside properties"
    if any(
        name not in (properties if isinstance(properties, dict) else ()) for name in required_names(schema)
    ):
        yield "required without properties"
    if "minProperties" in schema and others is not False:
        yield "minProperties without additionalProperties: false"
    if "multipleOf" in schema and not _is_plain_multiple(schema):
        yield "multipleOf"


def _is_plain_multiple(schema: Schema) -> bool:
    is_bounded = any("imum" in word for word in schema)
    return schema["type"] == "integer" and isinstance(schema["multipleOf"], int) and not is_bounded


def _not_by_llguidance(schema: Schema, root: object) -> Iterator[str]:
    yield from (word for word in schema if word in LLGUIDANCE_LACKS and not _is_free(word, schema))
    if "oneOf" in schema and not excludes(schema["oneOf"], root):
        yield "oneOf of alternatives that may overlap"
    if "format" in schema and not _is_free("format", schema) and schema["format"] not in LLGUIDANCE_FORMATS:
        yield f"format {schema['format']}"
    if _may_repeat_names(schema):
        yield "minProperties of properties without a name"


def _may_repeat_names(schema: Schema) -> bool:
    """A name that no keyword lists may come twice in an object, and would be counted twice."""
    least, named = schema.get("minProperties"), set(required_names(schema))
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return isinstance(least, int) and least > len(named) + 1 and not is_closed


_PIECES: Final = re.compile(r"(?s)\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)|\[\^?(?:\\.|[^\]\\])*\]|\(\?:?|.")
_ESCAPES: Final = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[dwnrtfv]|[!-/:-@\[\]\\_`{-~])")
_IN_CLASS: Final = re.compile(rf"\[\^?(?!\^)(?:{_ESCAPES.pattern}|[^\[\]\\])+\]")
_BLANKS: Final = r" \t\n\r\f\v"
_SURROGATES: Final = r"\uD800-\uDFFF"
_MEANT: Final = {
    ".": rf"[^\n{_SURROGATES}]",
    r"\s": f"[{_BLANKS}]",
    r"\S": f"[^{_BLANKS}{_SURROGATES}]",
    r"\D": f"[^0-9{_SURROGATES}]",
    r"\W": f"[^0-9A-Z_a-z{_SURROGATES}]",
}
"""In xgrammar `.` is a line feed too, blanks are not ASCII's, and half a surrogate pair is a character."""


def regex_for_xgrammar(text: str) -> str:
    """The expression as the library gets it. Raises InvalidGuide for what it would misunderstand."""
    pieces = _PIECES.findall(text)
    for place, piece in enumerate(pieces):
        if not _is_followed(piece, is_first=place == 0, is_last=place == len(pieces) - 1):
            raise InvalidGuide(f"{piece} is not followed by xgrammar in this place")
    return "".join(_MEANT.get(piece) or _class(piece) for piece in pieces)


def _is_followed(piece: str, *, is_first: bool, is_last: bool) -> bool:
    if piece in _MEANT or piece in ("^", "$", "(?"):
        return piece in _MEANT or (piece == "^" and is_first) or (piece == "$" and is_last)
    if piece[0] == "[":
        return "\\^" not in piece and bool(_IN_CLASS.fullmatch(_class(piece)))
    return piece[0] != "\\" or bool(_ESCAPES.fullmatch(piece))


def _class(piece: str) -> str:
    """A class with ASCII's blanks, and without surrogates where it says what may not come; else as it is."""
    if piece[0] != "[":
        return piece
    spelt = re.sub(r"(?s)\\.", lambda each: _BLANKS if each[0] == r"\s" else each[0], piece)
    if not spelt.startswith("[^") or spelt == "[^]":
        return spelt
    # Behind a range a dash would begin another one.
    rest = spelt[2:] if spelt[2] != "-" else rf"\{spelt[2:]}"
    return f"[^{_SURROGATES}{rest}"


def tag_for_xgrammar(text: str, max_whitespace: int | None = None) -> str:
    """A structural tag, with the schemas and expressions in it as the library gets them.

    `max_whitespace` is how many characters of it may come in a row between JSON tokens; None: any number.
    """
    return json.dumps(_tag(parsed(text), "xgrammar", max_whitespace))


def tag_for_llguidance(text: str) -> str:
    """The same for llguidance."""
    return json.dumps(_tag(parsed(text), "llguidance", None))


def _tag(value: object, library: str, max_whitespace: int | None) -> object:
    if isinstance(value, list):
        return [_tag(each, library, max_whitespace) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    tag = {key: _tag_part(key, each, kind, library, max_whitespace) for key, each in value.items()}
    is_limited = kind == "json_schema" and max_whitespace is not None
    return {"max_whitespace_cnt": max_whitespace, **tag} if is_limited else tag


def _tag_part(key: str, value: object, kind: object, library: str, max_whitespace: int | None) -> object:
    if key in ("json_schema", "schema") and isinstance(value, dict | bool):
        return json.loads(_checked(value, library))
    if key == "pattern" and kind == "regex" and isinstance(value, str) and library == "xgrammar":
        return regex_for_xgrammar(value)
    return _tag(value, library, max_whitespace)
