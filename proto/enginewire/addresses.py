"""Where programs of one user meet, and which addresses others can reach.

Knows nothing about gRPC; opens and creates nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from enginewire.options import OptionError

SHOWN_FOLDER: Final = "$XDG_RUNTIME_DIR/enginewire, else /tmp/enginewire-<uid>"


def default_socket(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The Unix socket of `name` in a folder that belongs to this user alone."""
    return _runtime_folder(environment) / f"{name}.sock"


def shown_socket(name: str) -> str:
    """`default_socket` for help and docs, the same on every machine."""
    return f"{name}.sock in {SHOWN_FOLDER}"


def is_loopback(host: str) -> bool:
    """True for `localhost` and loopback addresses; other names may resolve to anything."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
