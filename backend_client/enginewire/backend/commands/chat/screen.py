"""What a chat looks like: styled on a terminal, plain text elsewhere.

Knows nothing about requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.processes.terminal_text import harmless

if TYPE_CHECKING:
    from rich.console import Console

# Two backgrounds in turn, readable on dark and on light terminals.
TOKEN_STYLES: Final = ("grey93 on grey23", "grey93 on dark_green")
BETWEEN_TOKENS: Final = "|"


class Screen:
    """Where a chat is shown."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._console = _console(out) if out.isatty() else None
        self._num_tokens = 0
        self._is_line_open = False

    @property
    def is_terminal(self) -> bool:
        """Styles are shown."""
        return self._console is not None

    def begin_answer(self) -> None:
        """The next token is the first one."""
        self._num_tokens = 0

    def text(self, output: BackendOutput) -> None:
        """A piece of an answer."""
        self._piece(harmless(output.text))

    def tokens(self, output: BackendOutput) -> None:
        """The tokens of a piece, each apart from the next, withheld and special ones included."""
        for token in output.tokens or ():
            shown = harmless(token)
            if self.is_terminal:
                self._piece(shown, TOKEN_STYLES[self._num_tokens % 2])
            else:
                self._piece(f"{BETWEEN_TOKENS}{shown}" if self._num_tokens else shown)
            self._num_tokens += 1

    def end_answer(self) -> None:
        """Whatever follows begins a line."""
        if self._is_line_open:
            self._piece("\n")

    def aside(self, *lines: str) -> None:
        """What is not part of an answer; only people at a terminal need it."""
        if self.is_terminal:
            self.lines(*lines, style="dim")

    def lines(self, *lines: str, style: str = "") -> None:
        """What was asked of the chat itself."""
        for line in lines:
            self._piece(f"{line}\n", style)

    def error(self, message: str) -> None:
        """What went wrong, in one line."""
        self._out.flush()
        print(f"enginewire chat: {harmless(message)}", file=self._err, flush=True)

    def _piece(self, text: str, style: str = "") -> None:
        if not text:
            return
        if self._console is None:
            self._out.write(text)
            self._out.flush()
        else:
            from rich.text import Text

            self._console.print(Text(text, style), end="", soft_wrap=True)
        self._is_line_open = not text.endswith("\n")


def _console(out: TextIO) -> Console:
    from rich.console import Console

    return Console(file=out, highlight=False)


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Two columns as lines."""
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {value}".rstrip() for name, value in rows]
