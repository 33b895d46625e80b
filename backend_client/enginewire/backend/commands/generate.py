"""`enginewire-backend generate`: one prompt in, its text on standard output as it comes.

Holds how an answer looks to a person. Knows nothing about engines; the request goes through TextBackend.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TextIO

from enginewire import v1 as pb
from enginewire.backend.commands.defaults import default_request
from enginewire.backend.commands.life import describe
from enginewire.backend.commands.options import CommandLineOptions
from enginewire.backend.decoding.annotated import Annotated, BackendOutput, Failure
from enginewire.backend.frontends.json_items import item_to_json
from enginewire.backend.frontends.text_backend import TextBackend

MAX_PROMPT_BYTES: Final = 32 << 20


@dataclass(slots=True)
class Choice:
    """What is known about one answer. Times in seconds of time.monotonic."""

    num_tokens: int = 0
    first_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: pb.FinishReason.ValueType = pb.FINISH_REASON_UNSPECIFIED
    stop_reason: str | int | None = None
    error_message: str | None = None

    def add(self, output: BackendOutput, now: float) -> None:
        """Take the next output."""
        self.num_tokens += len(output.token_ids)
        if self.first_token_at is None and output.token_ids:
            self.first_token_at = now
        if output.is_terminal:
            self.finished_at = now
            self.finish_reason = output.finish_reason
            self.stop_reason = output.stop_reason
            self.error_message = output.error_message

    @property
    def tokens_per_second(self) -> float:
        """Speed after the first token; 0 when there was no second one."""
        if self.first_token_at is None or self.finished_at is None or self.num_tokens < 2:
            return 0.0
        return (self.num_tokens - 1) / max(self.finished_at - self.first_token_at, 1e-9)


@dataclass(slots=True)
class Answer:
    """Everything that is known about a request so far."""

    began_at: float = field(default_factory=time.monotonic)
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: pb.CompletionUsage | None = None
    failure: Failure | None = None

    def add(self, item: Annotated[BackendOutput]) -> None:
        """Take the next item."""
        self.failure = item.error or self.failure
        if item.data is not None:
            self.choices.setdefault(item.data.index, Choice()).add(item.data, time.monotonic())
            self.usage = item.data.completion_usage or self.usage

    def errors(self) -> list[str]:
        """What went wrong with the request or with one of its choices, a line each."""
        of_request = [] if self.failure is None else [describe(self.failure)]
        return of_request + [
            f"choice {index}: {choice.error_message or 'the engine failed'}"
            for index, choice in self.choices.items()
            if choice.finish_reason == pb.FINISH_REASON_ERROR
        ]


class ChoiceText:
    """Prints the text of several choices in their order: one streams, later ones wait for their turn."""

    def __init__(self, out: TextIO, *, labelled: bool) -> None:
        """`labelled` puts its number before each choice."""
        self._out = out
        self._labelled = labelled
        self._held: dict[int, str] = {}
        self._ended: set[int] = set()
        self._turn = 0
        self._speaker = -1
        self._at_line_start = True

    def write(self, index: int, text: str, *, is_last: bool) -> None:
        """Take a piece of choice `index`."""
        self._held[index] = self._held.get(index, "") + text
        if is_last:
            self._ended.add(index)
        self._show_choice(self._turn)
        while self._turn in self._ended:
            self._turn += 1
            self._show_choice(self._turn)

    def finish(self) -> None:
        """Nothing follows: show what still waits, and end the line."""
        for index in sorted(self._held):
            self._show_choice(index)
        self._end_line()

    def _show_choice(self, index: int) -> None:
        if index not in self._held:
            return
        if self._labelled and index != self._speaker:
            self._end_line()
            self._show(f"[{index}] ")
        self._speaker = index
        self._show(self._held.pop(index))

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._show("\n")

    def _show(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")


async def generate(
    backend: TextBackend, options: CommandLineOptions, prompt: str, *, out: TextIO, err: TextIO
) -> int:
    """Stream the answer to `prompt`; returns 0, or 1 after an error. Raises InvalidPrompt."""
    asked = make_request(options, prompt, has_template=backend.tokenizer.chat_template is not None)
    answer = Answer()
    async with aclosing(backend.generate(asked, timeout=options.timeout)) as items:
        if options.json:
            await _print_json(items, answer, out)
        else:
            await _print_text(items, answer, ChoiceText(out, labelled=(options.n or 1) > 1))
    for error in answer.errors():
        print(f"enginewire-backend: {error}", file=err)
    if options.stats:
        print_stats(answer, err)
    return 1 if answer.errors() else 0


async def _print_text(
    items: AsyncIterator[Annotated[BackendOutput]], answer: Answer, text: ChoiceText
) -> None:
    try:
        async for item in items:
            answer.add(item)
            if item.data is not None:
                text.write(item.data.index, item.data.text, is_last=item.data.is_terminal)
    finally:
        text.finish()


async def _print_json(items: AsyncIterator[Annotated[BackendOutput]], answer: Answer, out: TextIO) -> None:
    async for item in items:
        answer.add(item)
        print(json.dumps(item_to_json(item), ensure_ascii=False), file=out, flush=True)


def make_request(
    options: CommandLineOptions, prompt: str, *, has_template: bool
) -> pb.BackendServiceGenerateRequest:
    """What the options ask for. A model without a chat template completes the prompt as it is."""
    request = default_request(options)
    if options.stop_token_ids:
        request.stop_conditions.stop_token_ids.extend(options.stop_token_ids)
    if options.logprobs is not None:
        request.output_options.logprobs = options.logprobs
    asked = pb.BackendServiceGenerateRequest(request=request)
    if options.raw or not options.chat or not has_template:
        asked.text = prompt
        return asked
    if options.system:
        asked.chat.messages.add(role="system", content=options.system)
    asked.chat.messages.add(role="user", content=prompt)
    return asked


def read_prompt(options: CommandLineOptions) -> str:
    """The prompt, wherever it is. Raises OSError, and ValueError when it is too long or no UTF-8."""
    if options.prompt:
        return options.prompt
    if options.prompt_file is not None:
        with options.prompt_file.open("rb") as file:
            return _decoded(file.read(MAX_PROMPT_BYTES + 1), str(options.prompt_file))
    if sys.stdin.isatty():
        print("reading the prompt, end it with Ctrl-D:", file=sys.stderr)
    return _decoded(sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1), "standard input")


def _decoded(data: bytes, name: str) -> str:
    if len(data) > MAX_PROMPT_BYTES:
        raise ValueError(f"{name}: at most {MAX_PROMPT_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8") from error


def print_stats(answer: Answer, err: TextIO) -> None:
    """Why each choice ended, how fast it was, and the usage."""
    for index, choice in sorted(answer.choices.items()):
        print(stats_line(index, choice, answer.began_at), file=err)
    if answer.usage is not None:
        usage = answer.usage
        print(
            f"usage: {usage.prompt_tokens} prompt + {usage.completion_tokens} completion"
            f" = {usage.total_tokens} tokens",
            file=err,
        )


def stats_line(index: int, choice: Choice, began_at: float) -> str:
    """One choice in one line."""
    return f"choice {index}: {outcome(choice, began_at)}"


def outcome(choice: Choice, began_at: float) -> str:
    """Why a choice ended and how fast it was."""
    reason = pb.FinishReason.Name(choice.finish_reason).removeprefix("FINISH_REASON_").lower()
    stop = "" if choice.stop_reason is None else f" at {choice.stop_reason!r}"
    first = "-" if choice.first_token_at is None else f"{(choice.first_token_at - began_at) * 1000:.1f} ms"
    return (
        f"{reason}{stop}, {choice.num_tokens} tokens, first after {first},"
        f" then {choice.tokens_per_second:.1f} tokens/s"
    )
