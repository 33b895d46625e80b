"""Where programs of one user meet, and which addresses others can reach.

Knows nothing about gRPC; opens and creates nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from enginewire.options import OptionError

SOCKET_SCHEMES: Final = ("unix:", "unix-abstract:")
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # whoever uses it must check the owner
SHOWN_KV_FOLDER: Final = "/dev/shm/enginewire-kv-<uid>, else kv beside the default socket"  # noqa: S108
SHOWN_FOLDER: Final = "$XDG_RUNTIME_DIR/enginewire, else /tmp/enginewire-<uid>"


def default_socket(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The Unix socket of `name` in a folder that belongs to this user alone."""
    return _runtime_folder(environment) / f"{name}.sock"


def shown_socket(name: str) -> str:
    """`default_socket` for help and docs, the same on every machine."""
    return f"{name}.sock in {SHOWN_FOLDER}"


def default_kv_folder(environment: Mapping[str, str] = os.environ, shared: Path = SHARED_MEMORY) -> Path:
    """Where engines of this user hand keys and values over: in memory where the system has a place for it."""
    if shared.is_dir():
        return shared / f"enginewire-kv-{os.getuid()}"
    return _runtime_folder(environment) / "kv"


def is_loopback(host: str) -> bool:
    """True for `localhost` and loopback addresses; other names may resolve to anything."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_on_this_machine(target: str) -> bool:
    """True for Unix sockets and loopback addresses; `target` is any gRPC name."""
    if target.startswith(SOCKET_SCHEMES):
        return True
    host, _, _ = target.rpartition("/")[2].removeprefix("dns:").removeprefix("ipv4:").rpartition(":")
    return is_loopback(host.removeprefix("ipv6:").strip("[]"))


def listens_on_loopback(host: str) -> bool:
    """True when nobody beyond this machine reaches a server at `host`, whatever name that is.

    Every address counts that the name resolves to; one that resolves to none may do so later.
    """
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False
    return all(is_loopback(str(address[0])) for *_, address in found)


def wants_tcp(given: Mapping[str, str]) -> bool:
    """True when options `host` or `port` were given; `given` is `Loaded.sources`.

    Raises OptionError when `uds` was given as well: a server has one address.
    """
    tcp = [source for name, source in given.items() if name in ("host", "port")]
    if tcp and "uds" in given:
        raise OptionError(f"{given['uds']} and {' and '.join(tcp)} exclude each other: there is one address")
    return bool(tcp)


def _runtime_folder(environment: Mapping[str, str]) -> Path:
    runtime = Path(environment.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute() and runtime.is_dir():
        return runtime / "enginewire"
    # Whoever binds or connects here must check the owner of the folder: anyone may create it.
    return Path(f"/tmp/enginewire-{os.getuid()}")  # noqa: S108
