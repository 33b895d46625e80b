"""The `enginewire-backend` command: generate, jsonl and serve.

Exit codes: 0 done, 1 a request or the engine failed, 2 bad options, 98 the address is in use,
128 + signal when a signal ended it (141: nobody reads the output any more).
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Final

# The options too are imported when they are needed: until `main` is called, Ctrl-C is a traceback.
from enginewire.program import program
from enginewire.version import __version__

PROG: Final = "enginewire-backend"
MEANINGS: Final[Mapping[str, str]] = {
    "generate": "stream the answer to one prompt",
    "jsonl": "requests as JSON lines in, annotated outputs as JSON lines out",
    "serve": "serve text over gRPC, over HTTP as OpenAI does, and to the SMG gateway",
}
HTTP_PACKAGES: Final = ("httptools", "orjson", "prometheus_client", "starlette", "uvicorn")
SMG_PACKAGES: Final = ("smg_grpc_proto",)
EXIT_FAILED: Final = 1
EXIT_UNREAD: Final = 128 + signal.SIGPIPE


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Only the first argument is ours: everything behind it, --help included, belongs to the command.
    name: str = make_parser().parse_args(arguments[:1]).command
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Text is the product here: the locale shall not decide what becomes of it.
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    try:
        return COMMANDS[name](arguments[1:])
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNREAD


def make_parser() -> argparse.ArgumentParser:
    """The parser of the first argument."""
    commands = "\n".join(["commands:", *(f"  {name:<10}  {text}" for name, text in MEANINGS.items())])
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage=f"{PROG} COMMAND [options]",
        description="Turn an engine's tokens into text.",
        epilog=f"{commands}\n\n`{PROG} COMMAND --help` shows the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    parser.add_argument("command", choices=MEANINGS, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def _generate(argv: Sequence[str]) -> int:
    from enginewire.backend.commands.options import CommandLineOptions
    from enginewire.options import load

    options = load(
        CommandLineOptions, argv, prog=f"{PROG} generate", description="Stream the answer to one prompt."
    ).options
    # Past this line the command is really going to run: now the heavy imports may come.
    from enginewire.backend.commands.generate import generate, read_prompt
    from enginewire.backend.commands.life import run_command

    try:
        prompt = read_prompt(options)
    except (OSError, ValueError) as error:
        return _fail(error)
    return run_command(
        options, lambda backend: generate(backend, options, prompt, out=sys.stdout, err=sys.stderr)
    )


def _jsonl(argv: Sequence[str]) -> int:
    from enginewire.backend.config import STANDARD_STREAM, JsonlOptions
    from enginewire.options import load

    options = load(
        JsonlOptions, argv, prog=f"{PROG} jsonl", description="Answer JSON lines with JSON lines."
    ).options
    from enginewire.backend.commands.jsonl import answer_lines
    from enginewire.backend.commands.life import run_command

    with ExitStack() as files:
        try:
            source = (
                sys.stdin.fileno()
                if options.input == STANDARD_STREAM
                else files.enter_context(options.input.open("rb", buffering=0)).fileno()
            )
            out = (
                sys.stdout
                if options.output == STANDARD_STREAM
                else files.enter_context(options.output.open("w", encoding="utf-8"))
            )
        except OSError as error:
            return _fail(error)
        return run_command(options, lambda backend: answer_lines(backend, options, source=source, out=out))


def _serve(argv: Sequence[str]) -> int:
    from enginewire.backend.config import load_serve

    options = load_serve(argv)
    if options.http_port is not None and (missing := missing_packages(HTTP_PACKAGES)):
        return _fail(f"--http-port needs {', '.join(missing)}: pip install 'enginewire[http]'")
    if options.smg_port is not None and (missing := missing_packages(SMG_PACKAGES)):
        return _fail(f"--smg-port needs {', '.join(missing)}: pip install 'enginewire[smg]'")
    from enginewire.backend.commands.life import run_command
    from enginewire.backend.commands.serve import end_of, serve

    signals = end_of(options)
    return run_command(options, lambda backend: serve(backend, options, signals), signals)


def missing_packages(names: Sequence[str]) -> list[str]:
    """Those that are not installed."""
    return [name for name in names if find_spec(name) is None]


def _fail(error: Exception | str) -> int:
    print(f"{PROG}: {error}", file=sys.stderr)
    return EXIT_FAILED


COMMANDS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "generate": _generate,
    "jsonl": _jsonl,
    "serve": _serve,
}


if __name__ == "__main__":
    sys.exit(main())
