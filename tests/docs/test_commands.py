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
from tests.docs import ways_to_type
from tests.docs.shown_commands import Command, commands
from tests.docs.test_links import PAGES
from tests.repository import ROOT

PROGRAM = re.compile(r"enginewire(-\w+)?")
SHORT = {"enginewire-server": ["engine"], "enginewire-backend": ["backend"]}
SHORT["enginewire-conformance"] = ["conformance"]
SUBCOMMANDS = {"backend": ("generate", "jsonl", "serve"), "conformance": ("client", "self-test")}
PASSED_ON = {"serve": "engine"}
"""A program that gives the options it does not know to another one."""


def words_of(page: str) -> Iterator[list[str]]:
    """The words of each command of ours on a page, in blocks for a terminal and in sentences."""
    for command in commands(page):
        if not command.program:
            with contextlib.suppress(ValueError):  # half a quotation is no command
                yield from ours(shlex.split(re.sub(r"\\\n", " ", command.text), comments=True))


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


@pytest.mark.parametrize(
    "page",
    # A few of them only write about one: to read all commands here would take half a second of each process.
    sorted(page for page in PAGES if re.search(PROGRAM.pattern + r" [\w-]", page.read_text())),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_commands_exist(page: Path) -> None:
    for words in words_of(page.read_text()):
        program = program_of(words)
        assert program[0] in cli.COMMANDS or program[0].startswith("-"), shlex.join(words)
        flags = {word.split("=")[0] for word in words if re.fullmatch(r"--[\w-]+(=.*)?", word)}
        assert flags <= options_of(tuple(program)), (shlex.join(words), flags - options_of(tuple(program)))


def test_the_pages_show_commands_of_every_program() -> None:
    shown = [words for page in PAGES for words in words_of(page.read_text())]
    assert {program_of(words)[0] for words in shown} >= cli.COMMANDS.keys()


def test_every_command_is_typed_in_ci_or_it_is_said_why_not() -> None:
    texts = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}
    with_commands = {
        name
        for name, text in texts.items()
        if any(not command.is_quoted for command in commands(text)) and "node_modules" not in name
    }
    assert with_commands == ways_to_type.PAGES.keys()
    assert ways_to_type.missing_ways({name: texts[name] for name in with_commands}) == []


def test_a_new_command_and_one_that_is_gone_are_told() -> None:
    page = "docs/metrics.md"
    text = (ROOT / page).read_text()
    assert ways_to_type.missing_ways({page: text.replace("curl -s", "curl")}) == [
        f"{page}: no way to type 'curl http://127.0.0.1:9090/metrics'",
        f"{page} does not have 'curl -s http://127.0.0.1:9090/metrics'",
    ]


def test_output_that_a_page_leaves_out_may_be_anything() -> None:
    command = Command("x", "...\nlevel: 1, …\nend\n")
    assert command.is_shown_by("first\nlevel: 1, and more\nend\n")
    assert not command.is_shown_by("first\nlevel: 2, and more\nend\n")
    assert not command.is_shown_by("first\nlevel: 1, and more\n")
