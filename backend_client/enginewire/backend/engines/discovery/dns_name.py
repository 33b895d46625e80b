"""`dns:///name:port`: every address that a name has is an engine, as those of a headless Service are.

The system's resolver is asked, in a thread of the event loop. Knows nothing about who follows the name.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from enginewire.backend.engines.discovery.address import Address, InvalidTargets, host_and_port

SCHEME: Final = "dns:"
MAX_ENGINES: Final = 10_000
log = logging.getLogger(__name__)

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a name and a port to `ipv4:` and `ipv6:` targets. Raises OSError."""


async def all_records(name: str, port: int) -> Sequence[str]:
    """The A and AAAA records as targets. Raises OSError, socket.gaierror among it."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [_target(str(address), port) for *_, (address, *_rest) in found]


def _target(address: str, port: int) -> str:
    return f"ipv6:[{address}]:{port}" if ":" in address else f"ipv4:{address}:{port}"


class DnsName:
    """One name. That it cannot be found now says nothing about engines that have been found."""

    def __init__(self, target: str, lookup: Lookup = all_records) -> None:
        """Raises InvalidTargets."""
        self.target = target
        path = target.removeprefix(SCHEME).removeprefix("///")
        if path.startswith("/"):
            raise InvalidTargets(f"{target}: write dns:///name:port; this machine's own resolver is asked")
        try:
            self._host, self._port = host_and_port(path)
        except InvalidTargets as error:
            raise InvalidTargets(f"{target}: {error}") from error
        self._lookup = lookup
        self._fault = ""

    async def look(self) -> tuple[Address, ...] | None:
        """See `Source`."""
        try:
            found = sorted(set(await self._lookup(self._host, self._port)))
        except (OSError, UnicodeError) as error:
            self._tell(f"{self.target}: {getattr(error, 'strerror', None) or error}")
            return None
        if len(found) > MAX_ENGINES:
            self._tell(f"{self.target}: {len(found)} addresses, allowed are {MAX_ENGINES}")
            return None
        self._fault = ""
        return tuple(Address(target, self._host) for target in found)

    def _tell(self, fault: str) -> None:
        if fault != self._fault:
            log.warning("the engines from before stay in use: %s", fault)
        self._fault = fault
