"""The commands that the pages show have programs, subcommands and options that exist."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from enginewire import cli
from tests.docs.test_links import PAGES
from tests.repository import ROOT

PROGRAM = re.compile(r"enginewire(-\w+)?")
SHORT = {"enginewire-server": ["engine"], "enginewire-backend": ["backend"]}
SHORT["enginewire-conformance"] = ["conformance"]
SUBCOMMANDS = {"backend": ("generate", "jsonl", "serve"), "conformance": ("client", "self-test")}
PASSED_ON = {"serve": "engine"}
"""A program that gives the options it does not know to another one."""
CODE = re.compile(r"^(?:```|~~~)(\w*)\n(.*?)^(?:```|~~~)$|(?<!`)`([^`\n]+)`(?!`)", re.MULTILINE | re.DOTALL)


def commands(page: str) -> Iterator[list[str]]:
    """The words of each command of ours on a page, in blocks for a shell and in sentences."""
    for language, block, quoted in CODE.findall(page):
        lines = [quoted] if quoted else re.sub(r"\\\n", " ", block).splitlines()
        for line in lines if quoted or language in ("console", "sh") else ():
            with contextlib.suppress(ValueError):  # half a quotation is no command
                yield from ours(shlex.split(line.removeprefix("$ "), comments=True))


def ours(words: list[str]) -> Iterator[list[str]]:
    """The commands of ours in a line: behind pipes and settings, and those given to an option as a whole."""
    for place, word in enumerate(words):
        if PROGRAM.fullmatch(word) and place + 1 < len(words):
            rest = words[place:]
            yield rest[: rest.index("|")] if "|" in rest else rest
        if " " in word and PROGRAM.match(word):
            yield from ours(shlex.split(word))
        if (
            word == "--launch" and words[place + 1 :] and words[place + 1].startswith("--")
        ):  # of an engine of ours
            yield ["enginewire", "engine", *shlex.split(words[place + 1])]


def program_of(words: list[str]) -> list[str]:
    """The arguments of `enginewire` that choose a program, and perhaps its subcommand."""
    chosen = SHORT.get(words[0], words[1:2])
    behind = words[1:] if words[0] in SHORT else words[2:]
    return [*chosen, *(word for word in behind[:1] if word in SUBCOMMANDS.get(chosen[0], ()))]


@cache
def options_of(program: tuple[str, ...]) -> frozenset[str]:
    """The options in what `--help` says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        cli.main([*program, "--help"])
    found = frozenset(re.findall(r"--[\w-]+", said.getvalue()))
    other = PASSED_ON.get(program[0])
    return found | options_of((other,)) if other else found


SHOWN = [(page, words) for page in PAGES for words in commands(page.read_text())]


@pytest.mark.parametrize(
    "page", sorted({page for page, _ in SHOWN}), ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_commands_exist(page: Path) -> None:
    for words in [words for shown, words in SHOWN if shown == page]:
        program = program_of(words)
        assert program[0] in cli.COMMANDS or program[0].startswith("-"), shlex.join(words)
        flags = {word.split("=")[0] for word in words if re.fullmatch(r"--[\w-]+(=.*)?", word)}
        assert flags <= options_of(tuple(program)), (shlex.join(words), flags - options_of(tuple(program)))


def test_the_pages_show_commands_of_every_program() -> None:
    assert {program_of(words)[0] for _, words in SHOWN} >= cli.COMMANDS.keys()
