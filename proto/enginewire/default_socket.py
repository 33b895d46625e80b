"""The Unix socket that an engine and a backend of the same user meet at when nobody names another.

Knows nothing about gRPC; creates nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SHOWN: Final = "$XDG_RUNTIME_DIR/enginewire/engine.sock, else /tmp/enginewire-<uid>/engine.sock"


def default_socket(environment: Mapping[str, str] = os.environ) -> Path:
    """A path in a folder that belongs to this user alone."""
    runtime = Path(environment.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute() and runtime.is_dir():
        return runtime / "enginewire" / "engine.sock"
    # Whoever binds or connects here must check the owner of the folder: anyone may create it.
    return Path(f"/tmp/enginewire-{os.getuid()}/engine.sock")  # noqa: S108
