"""Log lines: one event per line, pretty on a terminal, JSON elsewhere, control characters escaped.

Goes through the standard `logging`, so that libraries and engines need nothing special.
"""

from __future__ import annotations

import logging
import sys

from enginewire.program.light_import import missing

with missing("rich", "greenlet"):  # a third of the start of a server, for what nothing here uses
    import structlog


def configure_logs(level: str, style: str) -> None:
    """Send all logs to stderr. `style` is auto, pretty or json; auto is pretty on a terminal."""
    pretty = style == "pretty" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        # Other formatters print the variables of every frame, and prompts are among them.
        [_escape, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if pretty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=True)]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    # A full disk or a closed stderr must not stop serving or flood it with tracebacks.
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _escape(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """What a caller wrote may neither begin a line nor colour the terminal."""
    return {key: _printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _printable(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )
