"""Which Host headers name a server of ours, for everything of ours that speaks HTTP.

A name that a web page's owner controls can be pointed at its reader's machine (DNS rebinding): the browser
then takes our answers for that page's own. It cannot do so with an address. Knows nothing about HTTP beyond
that header.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from enginewire.addresses import is_loopback

ANY: Final = "*"


class AllowedHosts:
    """The names of one server. Addresses, `localhost` and the name that it listens at always are."""

    def __init__(self, host: str, address: str, allowed: Iterable[str] = ()) -> None:
        """It listens at `host`, which is `address`. `*.example.org` allows every name below that one.

        Names of an address beyond loopback are not known here: without `allowed`, any is.
        """
        names = {name.lower() for name in allowed} or ({ANY} if not is_loopback(address) else set())
        self._is_any = ANY in names
        self._names = names | {"localhost", host.lower()}
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))

    def allows(self, header: str | None) -> bool:
        """True for a Host header that names this server, and without one: every browser sends it."""
        if header is None or self._is_any:
            return True
        name = host_name(header)
        return name in self._names or is_address(name) or name.endswith(self._suffixes)


def host_name(header: str) -> str:
    """The name in a Host header, without its port; "" when it is none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """True for an address of IPv4 or IPv6."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
