"""Where one engine is. Knows nothing about who says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

MAX_PORT: Final = 65_535
SOCKETS: Final = ("unix:", "unix-abstract:")
HOST_PORT: Final = re.compile(
    r"(?:ipv4:|ipv6:)?(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\],]+):(?P<port>\d{1,5})"
)


class InvalidTargets(Exception):
    """What shall say where engines are does not; the message names the place."""


@dataclass(frozen=True, slots=True)
class Address:
    """`target` as gRPC names it; `name` is what the engine's certificate has to say, "" for the target's."""

    target: str
    name: str = ""


class Source(Protocol):
    """Something that can be asked again and again where engines are."""

    async def look(self) -> tuple[Address, ...] | None:
        """Those there are now, each once; None when that cannot be told, which is logged."""


def host_and_port(text: str) -> tuple[str, int]:
    """Of `host:port`, with brackets around IPv6. Raises InvalidTargets."""
    found = HOST_PORT.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= MAX_PORT:
        raise InvalidTargets(f"{text[:200]!r} is not host:port, with a port of 1 to {MAX_PORT}")
    return found["host"].strip("[]"), int(found["port"])


def check_engine(target: str) -> str:
    """The target of one engine: a socket, or a host and port. Raises InvalidTargets."""
    if target.startswith(SOCKETS):
        if not target.partition(":")[2].strip("/"):
            raise InvalidTargets(f"{target!r} has no path")
        return target
    host_and_port(target)
    return target
