"""What can be chosen of log lines. Apart from `logs`, so that reading options does not load structlog."""

from __future__ import annotations

from typing import Literal

LogFormat = Literal["auto", "pretty", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
