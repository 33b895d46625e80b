"""The chat itself: lines in, answers and commands out.

Knows nothing about where lines come from and who answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import FrameType
from typing import Final

from enginewire.backend.commands.chat.answerers import Answerer, NoAnswer
from enginewire.backend.commands.chat.conversation import Conversation
from enginewire.backend.commands.chat.screen import Screen, table
from enginewire.backend.commands.generate import Answer, outcome
from enginewire.options import OptionError

EXIT_FAILED: Final = 1
HELP: Final[Mapping[str, str]] = {
    "/tokens": "show where each token begins, or no longer",
    "/stop TEXT ...": "end answers at these texts, quoted as in a shell; without one at none",
    "/params NAME=VALUE ...": "change parameters; without a value the engine chooses; alone, show them",
    "/clear": "forget what was said",
    "/help": "show this",
    "/quit": "leave, as Ctrl-D does",
    "//TEXT": "say something that begins with a slash",
}
COMMANDS: Final = tuple(name.split()[0] for name in HELP if not name.startswith("//"))


class Talk:
    """One chat, from its first line to its last."""

    def __init__(self, answerer: Answerer, conversation: Conversation, screen: Screen) -> None:
        self._answerer = answerer
        self._conversation = conversation
        self._screen = screen
        self._with_tokens = conversation.options.tokens
        self._has_failed = False

    async def run(self, lines: AsyncIterator[str]) -> int:
        """Until the lines end or one says so; returns 0, or 1 for a failure that nobody saw at a terminal."""
        async for line in lines:
            if line.startswith("/") and not line.startswith("//"):
                if line.split()[0] == "/quit":
                    break
                self._command(line)
            elif line.strip():
                await self._answer(line.removeprefix("/") if line.startswith("//") else line)
        return EXIT_FAILED if self._has_failed and not self._screen.is_terminal else 0

    def _command(self, line: str) -> None:
        try:
            name, *arguments = shlex.split(line)
            if name not in ACTIONS:
                raise OptionError(f"{name}: commands are {', '.join(COMMANDS)}")
            ACTIONS[name](self, arguments)
        except ValueError as error:
            self._fail(str(error))

    def _tokens(self, arguments: list[str]) -> None:
        _none(arguments, "/tokens")
        self._with_tokens = not self._with_tokens
        self._screen.aside("tokens are shown" if self._with_tokens else "text is shown")

    def _stop(self, arguments: list[str]) -> None:
        self._conversation.stop_at(arguments)
        self._screen.aside(f"answers end at {', '.join(map(repr, arguments)) or 'no text'}")

    def _params(self, arguments: list[str]) -> None:
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if not equals:
                raise OptionError(f"/params {argument}: must be NAME=VALUE")
            self._conversation.set_parameter(name, value)
        if not arguments:
            shown = [(name, value or "-") for name, value in self._conversation.parameters()]
            self._screen.lines(*table(shown))

    def _clear(self, arguments: list[str]) -> None:
        _none(arguments, "/clear")
        self._conversation.clear()
        self._screen.aside("nothing was said")

    def _help(self, arguments: list[str]) -> None:
        _none(arguments, "/help")
        self._screen.lines(*table(list(HELP.items())))

    async def _answer(self, question: str) -> None:
        """Stream the answer. Ctrl-C aborts it and nothing else."""
        pieces: list[str] = []
        streaming = asyncio.create_task(self._stream(question, pieces))
        is_aborted = False

        def abort() -> None:
            nonlocal is_aborted
            is_aborted = True
            streaming.cancel()

        try:
            with on_interrupt(abort):
                await streaming
        except asyncio.CancelledError:
            if not is_aborted:
                streaming.cancel()
                raise
        except NoAnswer as error:
            self._screen.end_answer()
            self._fail(str(error))
        self._screen.end_answer()
        if is_aborted:
            self._screen.aside("(aborted)")
        if text := "".join(pieces):
            self._conversation.answered(question, text)

    async def _stream(self, question: str, pieces: list[str]) -> None:
        """Raises NoAnswer."""
        answer, with_tokens = Answer(), self._with_tokens
        self._screen.begin_answer()
        items = self._answerer.ask(self._conversation.request(question), with_tokens=with_tokens)
        async with contextlib.aclosing(items):
            async for item in items:
                answer.add(item)
                if item.data is not None:
                    pieces.append(item.data.text)
                    (self._screen.tokens if with_tokens else self._screen.text)(item.data)
        if errors := answer.errors():
            raise NoAnswer("; ".join(errors))
        self._screen.end_answer()
        for choice in answer.choices.values():
            self._screen.aside(f"({outcome(choice, answer.began_at)})")

    def _fail(self, message: str) -> None:
        self._has_failed = True
        self._screen.error(message)


ACTIONS: Final[Mapping[str, Callable[[Talk, list[str]], None]]] = {
    "/tokens": Talk._tokens,
    "/stop": Talk._stop,
    "/params": Talk._params,
    "/clear": Talk._clear,
    "/help": Talk._help,
}


def _none(arguments: list[str], name: str) -> None:
    if arguments:
        raise OptionError(f"{name}: takes nothing behind it, got {' '.join(arguments)}")


@contextlib.contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Inside this Ctrl-C does that instead of ending the command."""
    loop = asyncio.get_running_loop()

    def receive(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)

    before = signal.signal(signal.SIGINT, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
