"""The commands that a page shows, and what it shows of their output. Needs nothing but Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK_OR_QUOTED = re.compile(
    r"^(?:```|~~~)(?P<language>\w*)\n(?P<block>.*?)^(?:```|~~~)$|(?<!`)`(?P<quoted>[^`\n]+)`(?!`)",
    re.MULTILINE | re.DOTALL,
)
LEFT_OUT = re.compile(r"^\.\.\.\n|…", re.MULTILINE)
"""What stands for output that a page does not show."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed, and the output that the page shows below it. A name in a sentence is `quoted`.

    A program in Python is the text of its block, and its name is "python" with its number on the page.
    """

    text: str
    output: str = ""
    is_quoted: bool = False
    program: str = ""

    @property
    def name(self) -> str:
        """The command, or its program if it has several lines."""
        return self.program or (self.text.split()[0] if "\n" in self.text else self.text)

    def is_shown_by(self, output: str) -> bool:
        """Whether a command that said this has said what the page shows."""
        pattern = ".*".join(map(re.escape, LEFT_OUT.split(self.output)))
        return re.search(pattern, output, re.DOTALL) is not None


def commands(page: str) -> Iterator[Command]:
    """The commands in blocks for a terminal, those named in sentences and tables, and programs in Python."""
    num_programs = 0
    for part in BLOCK_OR_QUOTED.finditer(page):
        if part["quoted"]:
            yield Command(part["quoted"], is_quoted=True)
        elif part["language"] == "console":
            yield from typed_in(part["block"])
        elif part["language"] == "python":
            num_programs += 1
            yield Command(part["block"], program=f"python {num_programs}")


def typed_in(block: str) -> Iterator[Command]:
    """The commands of a console block: a line after `$ `, with those it is continued on."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        text, output = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        yield Command(re.sub(r"\s{2,}# .*", "", text), output.rstrip("\n") + "\n" if output.strip() else "")
