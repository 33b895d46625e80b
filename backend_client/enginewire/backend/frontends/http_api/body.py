"""Typed reading of a JSON body: every value is checked, and a wrong one is reported with its field.

Sans-IO. `null` counts as absent, as in OpenAI's own API. Knows nothing about what the fields mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import orjson

T = TypeVar("T")

KIND_NAMES: Mapping[type, str] = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a string",
    dict: "an object",
    list: "a list",
}


class InvalidBody(ValueError):
    """The body cannot be used; `field` is what is at fault in it, "" when it is no JSON object at all."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


class Body:
    """The fields of a request, or of an object in it at `path`.

    Every reader raises InvalidBody for a value of another kind.
    """

    def __init__(self, fields: Mapping[str, object], path: str = "") -> None:
        self._fields = fields
        self._path = path

    @classmethod
    def parse(cls, data: bytes | bytearray) -> Body:
        """Read JSON. Raises InvalidBody."""
        try:
            fields = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise InvalidBody("", f"not JSON: {error.msg} at character {error.pos}") from error
        return cls(checked("", fields, dict))

    def get(self, key: str) -> object:
        """The value as it is; None when absent."""
        return self._fields.get(key)

    def number(self, key: str) -> float | None:
        """A number, whole or not."""
        value = self.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return None if value is None else checked(self._name(key), value, float)

    def integer(self, key: str) -> int | None:
        """A whole number."""
        return self._optional(key, int)

    def text(self, key: str) -> str | None:
        """A string."""
        return self._optional(key, str)

    def flag(self, key: str) -> bool:
        """True or false; absent is false."""
        return self._optional(key, bool) or False

    def nested(self, key: str) -> Body | None:
        """An object, to be read in turn."""
        fields = self._optional(key, dict)
        return None if fields is None else Body(fields, self._name(key))

    def items(self) -> Sequence[tuple[str, object]]:
        """Every field with its value."""
        return list(self._fields.items())

    def strings(self, key: str) -> list[str]:
        """A string or a list of strings; absent is none."""
        value = self.get(key)
        return [value] if isinstance(value, str) else self._list(key, str, "a string or a list of strings")

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers; absent is none."""
        return self._list(key, int, "a list of whole numbers")

    def _list(self, key: str, kind: type[T], wanted: str) -> list[T]:
        items = self._optional(key, list, wanted) or []
        return [checked(f"{self._name(key)}[{place}]", item, kind) for place, item in enumerate(items)]

    def _optional(self, key: str, kind: type[T], wanted: str = "") -> T | None:
        value = self.get(key)
        return None if value is None else checked(self._name(key), value, kind, wanted)

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def checked(field: str, value: object, kind: type[T], wanted: str = "") -> T:
    """`value`, when it is of that kind. Raises InvalidBody, with all that is `wanted` where that is more."""
    # bool is a subclass of int, but true is no number.
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    wanted = wanted or KIND_NAMES[kind]
    if not field:
        raise InvalidBody(field, "the body must be a JSON object")
    raise InvalidBody(field, f"must be {wanted}{', but is missing or null' if value is None else ''}")
