"""How long a test waits for what must come: far longer than it takes, even beside other work."""

from __future__ import annotations

from typing import Final

PATIENCE_SECONDS: Final = 90
