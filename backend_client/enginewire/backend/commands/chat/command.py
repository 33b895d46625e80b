"""The `enginewire chat` command.

Exit codes: 0 the end, 1 nobody answers or, without a terminal, a request failed, 2 bad options, 128 + signal.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from enginewire.backend.commands.chat.options import ChatOptions, choose
from enginewire.options import load
from enginewire.program import program

if TYPE_CHECKING:
    from enginewire.backend.commands.chat.answerers import Answerer

PROG: Final = "enginewire chat"
EXIT_FAILED: Final = 1
INTERRUPTED: Final = "Ctrl-D or /quit leaves"


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Talk until the end of the input; returns the exit code."""
    options = load(
        ChatOptions,
        argv,
        prog=PROG,
        description="Talk to a model: at a prompt on a terminal, else a question per line of standard input.",
        resolve=choose,
    ).options
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Text is the product here: the locale shall not decide what becomes of it.
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    # Past this line the command is really going to run: now the heavy imports may come.
    from enginewire.backend.commands.chat.answerers import NoAnswer, OwnBackend
    from enginewire.backend.commands.life import run_command, run_until_signal

    if is_at_terminal():
        import prompt_toolkit  # noqa: F401
        import rich  # noqa: F401
    try:
        if options.backend:
            return run_until_signal(_with_running_backend(options))
        return run_command(
            options, lambda backend: _talk(options, OwnBackend(backend, options.timeout)), prog=PROG
        )
    except NoAnswer as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return EXIT_FAILED


def is_at_terminal() -> bool:
    """There is somebody who types and reads."""
    return sys.stdin.isatty() and sys.stdout.isatty()


async def _with_running_backend(options: ChatOptions) -> int:
    from enginewire.backend.commands.chat.answerers import running_backend

    async with running_backend(options) as answerer:
        return await _talk(options, answerer)


async def _talk(options: ChatOptions, answerer: Answerer) -> int:
    from enginewire.backend.commands.chat.conversation import Conversation
    from enginewire.backend.commands.chat.keyboard import InvalidLine, piped_lines, typed_lines
    from enginewire.backend.commands.chat.screen import Screen
    from enginewire.backend.commands.chat.talk import COMMANDS, Talk

    screen = Screen(sys.stdout, sys.stderr)
    talk = Talk(answerer, Conversation(options), screen)
    if is_at_terminal():
        screen.aside("/help shows what you can type. Ctrl-C ends an answer, Ctrl-D the chat.")
        return await talk.run(typed_lines(COMMANDS, INTERRUPTED))
    try:
        return await talk.run(piped_lines())
    except (InvalidLine, OSError) as error:
        screen.error(str(error))
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
