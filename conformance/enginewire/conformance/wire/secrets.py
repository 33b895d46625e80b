"""What the text of a status must not tell a caller, and how it looks."""

from __future__ import annotations

import re
from typing import Final

SECRETS: Final[dict[str, re.Pattern[str]]] = {
    "a stack trace": re.compile(
        r"Traceback|File \"|\n\s+at |goroutine \d|thread '.*' panicked|0x[0-9a-f]{8,}"
    ),
    "a class name": re.compile(r"\b[A-Z]\w*(Error|Exception)\b|<class |\bstd::|\b\w+\.\w+\.[A-Z]\w+\("),
    "a path of the host": re.compile(
        r"(?<![\w.])/(home|usr|opt|var|tmp|root|srv|etc|mnt)/|[A-Z]:\\|\.(py|rs|go|cc|cpp)\b"
    ),
}
