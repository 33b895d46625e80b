"""How the `enginewire` command is typed in this folder."""

from __future__ import annotations

import sys
from pathlib import Path


def typed_name() -> str:
    """A relative path where it is installed below this folder, as in a checkout; else its name."""
    installed = Path(sys.prefix, "bin", "enginewire")
    return str(installed.relative_to(Path.cwd())) if installed.is_relative_to(Path.cwd()) else installed.name
