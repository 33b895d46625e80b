"""Where lines come from: a prompt on a terminal, standard input elsewhere.

Knows nothing about what lines mean.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from typing import Final

from enginewire.backend.commands.line_input import read_lines

PROMPT: Final = "> "
MAX_LINE_BYTES: Final = 8 << 20


class InvalidLine(Exception):
    """A line that cannot be asked; the message says why."""


async def piped_lines() -> AsyncIterator[str]:
    """The lines of standard input. Raises InvalidLine and OSError."""
    async for line in read_lines(sys.stdin.fileno(), MAX_LINE_BYTES):
        if line.data is None:
            raise InvalidLine(f"line {line.number} is longer than {MAX_LINE_BYTES} bytes")
        try:
            yield line.data.decode().rstrip("\r")
        except UnicodeDecodeError as error:
            raise InvalidLine(f"line {line.number} is not UTF-8") from error


async def typed_lines(commands: Sequence[str], interrupted: str) -> AsyncIterator[str]:
    """What is typed at a prompt until Ctrl-D; Ctrl-C empties the line and says `interrupted`."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter

    completer = WordCompleter(list(commands), sentence=True)
    session: PromptSession[str] = PromptSession(PROMPT, completer=completer, complete_while_typing=False)
    while True:
        try:
            yield await session.prompt_async(handle_sigint=False)
        except KeyboardInterrupt:
            print(interrupted, flush=True)
        except EOFError:
            return
