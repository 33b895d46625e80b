"""Fields of Dynamo's JSON, each of which is carried, left to the frontend, or refused under its name.

Sans-IO. Knows nothing about what the fields mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Self

import grpc
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed, failed


class Fields:
    """One object of the JSON. What nobody has taken from it is left."""

    def __init__(self, given: object, path: str = "") -> None:
        """`path` leads to it, with a dot at its end. Raises RequestFailed for anything but an object."""
        if not isinstance(given, Mapping):
            raise refused(path.rstrip("."), "must be an object")
        self._path = path
        self._left = dict(given)

    def take(self, name: str) -> object:
        """Its value; None when it is not given."""
        return self._left.pop(name, None)

    def has(self, name: str) -> bool:
        """It is given and not taken yet."""
        return self._left.get(name) is not None

    def group(self, name: str) -> Self:
        """The object of that name, empty when it is not given."""
        given = self.take(name)
        return type(self)({} if given is None else given, f"{self._path}{name}.")

    def put(self, message: Message, *names: str) -> None:
        """Take fields that are called the same in `message`."""
        for name in names:
            self.put_value(message, name, self.take(name))

    def put_value(self, message: Message, name: str, value: object, own_name: str = "") -> None:
        """Set a field, a list or not, unless the value is None. Raises RequestFailed."""
        if value is None:
            return
        try:
            if isinstance(value, list):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except (TypeError, ValueError, AttributeError) as error:
            raise refused(
                self._path + (own_name or name), "has a value of another type, or one out of range"
            ) from error

    def refuse(self, left_alone: Collection[str] = ()) -> None:
        """Raise RequestFailed for the first field that is left and asks for something.

        `left_alone` are paths that may be.
        """
        for name, value in self._left.items():
            if value and (path := self._path + name) not in left_alone:
                raise refused(path, "cannot be carried to an engine of this contract", is_valid=True)


def refused(path: str, why: str, *, is_valid: bool = False) -> RequestFailed:
    """A field that is wrong, or valid and not to be had here."""
    if is_valid:
        code, reason = grpc.StatusCode.UNIMPLEMENTED, pb.ERROR_REASON_UNSUPPORTED
    else:
        code, reason = grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_REASON_INVALID_REQUEST
    return failed(code, reason, f"{path}: {why}", field=path)
