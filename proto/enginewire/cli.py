"""The `enginewire` command: one front door to every program of the project.

Imports a program only when it was chosen, so that `--help` and `--version` stay quick and a base
install can say what is missing. Knows nothing about the programs' options.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from enginewire.program import program
from enginewire.version import __version__

EXIT_USAGE: Final = 2


@dataclass(frozen=True, slots=True)
class Command:
    """A program behind the front door: `module` has `main(argv) -> int`, `extra` installs what it needs."""

    module: str
    extra: str
    meaning: str


COMMANDS: Final[Mapping[str, Command]] = {
    "demo": Command(
        "enginewire.backend.commands.demo", "engine,backend", "talk to the built-in model, without a network"
    ),
    "serve": Command(
        "enginewire.backend.commands.stack.command",
        "engine,http,top",
        "start a model with its API and page, in one go",
    ),
    "chat": Command(
        "enginewire.backend.commands.chat.command", "engine,chat", "talk to a model in the terminal"
    ),
    "engine": Command("enginewire.server.__main__", "engine", "serve a model on the engine contract"),
    "backend": Command("enginewire.backend.__main__", "backend", "turn an engine's tokens into text"),
    "dynamo": Command(
        "enginewire.backend.commands.dynamo", "dynamo", "be a worker of Dynamo, with an engine behind it"
    ),
    "bench": Command("enginewire.backend.bench.__main__", "bench", "send a load and measure the answers"),
    "top": Command("enginewire.backend.commands.top", "top", "watch how busy engines are"),
    "new-engine": Command(
        "enginewire.server.new_engine.command", "server", "begin an engine of your own: its first files"
    ),
    "conformance": Command(
        "enginewire.conformance.__main__", "conformance", "check that an engine keeps the contract"
    ),
}


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that the first argument names; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = available()
    # Only the first argument is ours: everything behind it, --help included, belongs to the program.
    name: str = make_parser(commands).parse_args(arguments[:1]).command
    return run(name, commands[name], arguments[1:])


def available() -> dict[str, Command]:
    """The commands whose programs are part of this release."""
    return {name: command for name, command in COMMANDS.items() if find_spec(command.module) is not None}


def run(name: str, command: Command, argv: Sequence[str]) -> int:
    """Import and run a program; one line on stderr when a package that it needs is not installed."""
    try:
        exit_code: int = importlib.import_module(command.module).main(argv)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] == "enginewire":
            raise
        extra = extra_for(name, command, argv)
        message = f"enginewire {name} needs the Python module {missing}: pip install 'enginewire[{extra}]'"
        print(message, file=sys.stderr)
        return EXIT_USAGE
    return exit_code


def extra_for(name: str, command: Command, argv: Sequence[str]) -> str:
    """What installs all that these arguments need: without our own model a server needs no torch."""
    if name != "engine":
        return command.extra
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--engine", default="torch")
    chosen: str = parser.parse_known_args(argv)[0].engine
    return command.extra if chosen == "torch" else "server"


def make_parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser of the first argument."""
    listing = [f"  {name:<12}  {command.meaning}" for name, command in commands.items()]
    parser = argparse.ArgumentParser(
        prog="enginewire",
        usage="enginewire COMMAND [options]",
        description="The open contract between LLM engines and the backends in front of them.",
        epilog="\n".join(["commands:", *listing, "", "enginewire COMMAND --help shows its options."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"enginewire {__version__}")
    parser.add_argument("command", choices=commands, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser
