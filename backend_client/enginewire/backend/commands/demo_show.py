"""What `enginewire demo` shows: an engine server and a backend as two processes, and what they answer.

Knows the backend only through its gRPC service and its command line.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from dataclasses import dataclass
from typing import Final, TextIO

import grpc

from enginewire import v1 as pb
from enginewire.backend.commands.options import DemoOptions
from enginewire.backend.commands.typed_name import typed_name
from enginewire.backend.decoding.annotated import Annotated, BackendOutput, annotated_from_proto
from enginewire.backend.processes.engine_output import EngineOutput
from enginewire.backend.processes.sidecar import Sidecar, engine_on, private_folder, sidecar

# The built-in model knows these. Their answers need several tokens for one character.
QUESTIONS: Final = ("What is a KV block?", "Draw the architecture", "なぜ文字を保留するのですか?")
MAX_TOKENS: Final = 256
BOLD: Final = "\x1b[1m"
DIM: Final = "\x1b[2m"
PLAIN: Final = "\x1b[0m"


class DemoFailed(Exception):
    """The demo did not show what it should; the message says why."""


class Screen:
    """Where the demo is shown: styled on a terminal, plain elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()

    def line(self, text: str = "", style: str = "") -> None:
        """A whole line."""
        self.piece(f"{style}{text}{PLAIN}\n" if style and self._is_terminal else f"{text}\n")

    def piece(self, text: str) -> None:
        """Text as it comes."""
        self._out.write(text)
        self._out.flush()


@dataclass(slots=True)
class Answer:
    """One answer as it streams. Times in seconds of time.monotonic."""

    asked_at: float
    text: str = ""
    num_tokens: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    finish_reason: pb.FinishReason.ValueType = pb.FINISH_REASON_UNSPECIFIED

    def add(self, output: BackendOutput, now: float) -> None:
        """Take the next output."""
        self.text += output.text
        self.first_at = self.first_at or now
        self.last_at = now
        self.num_tokens += len(output.token_ids)
        self.finish_reason = output.finish_reason

    def summary(self) -> str:
        """Finish reason, time to the first token and speed in one line."""
        reason = pb.FinishReason.Name(self.finish_reason).removeprefix("FINISH_REASON_").lower()
        first = (self.first_at - self.asked_at) * 1000
        speed = max(0, self.num_tokens - 1) / max(self.last_at - self.first_at, 1e-9)
        return f"({reason}: {self.num_tokens} tokens, first after {first:.0f} ms, then {speed:.0f} tokens/s)"


async def show(options: DemoOptions, screen: Screen) -> int:
    """Start both processes, ask, drain both; returns 0. Raises DemoFailed and SidecarDied."""
    screen.line("Starting an engine server and a backend …", DIM)
    with private_folder() as folder:
        engine_socket, backend_socket = folder / "engine.sock", folder / "backend.sock"
        # Its other lines are seen when it dies.
        output = EngineOutput(sys.stderr if sys.stderr.isatty() else None)
        engine_arguments = (options.model, "--engine", options.engine)
        backend_arguments = ("serve", "--target", f"unix:{engine_socket}", "--uds", str(backend_socket))
        async with (
            engine_on(engine_socket, engine_arguments, output) as engine,
            sidecar("enginewire.backend", backend_arguments, name="the backend", show=_hide) as backend,
        ):
            conversation = converse(f"unix:{backend_socket}", options.ready_timeout, screen, output)
            await engine.unless_it_dies(backend.unless_it_dies(conversation))
            screen.line(f"{engine.name}: pid {engine.pid}, unix:{engine_socket}", DIM)
            screen.line(f"{backend.name}: pid {backend.pid}, unix:{backend_socket}", DIM)
            await _drain(backend)
            await _drain(engine)
    screen.line("Both have drained.\n", DIM)
    for line in next_steps(options):
        screen.line(line)
    return 0


def next_steps(options: DemoOptions) -> tuple[str, ...]:
    """What to type after the demo, as it can be typed in this folder."""
    command = typed_name()
    engine = () if options.engine == DemoOptions().engine else ("--engine", options.engine)
    model = () if (options.model, engine) == (DemoOptions().model, ()) else (options.model, *engine)
    launch = ("--launch", shlex.join(model)) if model else ()
    return (
        "Talk to it yourself, or serve it with its API and page:",
        f"  {shlex.join((command, 'chat', *launch))}",
        f"  {shlex.join((command, 'serve', *model))}",
    )


async def converse(target: str, ready_timeout: float, screen: Screen, output: EngineOutput) -> None:
    """Ask the backend at `target` every question, one after the other. Raises DemoFailed."""
    began_at = time.monotonic()
    async with grpc.aio.insecure_channel(target) as channel:
        try:
            await asyncio.wait_for(channel.channel_ready(), ready_timeout)
        except TimeoutError as error:
            raise DemoFailed(f"not ready after {ready_timeout:.0f} s") from error
        output.loaded()
        screen.line(f"Ready after {time.monotonic() - began_at:.1f} s.\n", DIM)
        for question in QUESTIONS:
            screen.line(f"> {question}", BOLD)
            answer = await ask(pb.BackendServiceStub(channel), question, screen)
            if not answer.text.strip():
                raise DemoFailed(f"no answer to {question!r}")
            screen.line(f"\n{answer.summary()}\n", DIM)


async def ask(backend: pb.BackendServiceAsyncStub, question: str, screen: Screen) -> Answer:
    """Stream one answer to the screen. Raises DemoFailed."""
    asked = pb.BackendServiceGenerateRequest(
        chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content=question)]),
        request=pb.PreprocessedRequest(
            stop_conditions=pb.StopConditions(max_tokens=MAX_TOKENS),
            sampling_options=pb.SamplingOptions(temperature=0.0),
        ),
    )
    answer = Answer(asked_at=time.monotonic())
    try:
        async for response in backend.Generate(asked):
            output = _output(annotated_from_proto(response.annotated))
            answer.add(output, time.monotonic())
            screen.piece(output.text)
    except grpc.aio.AioRpcError as error:
        raise DemoFailed(f"{error.code().name}: {error.details()}") from error
    return answer


def _output(item: Annotated[BackendOutput]) -> BackendOutput:
    if item.error is not None:
        raise DemoFailed(item.error.message)
    output = item.data or BackendOutput()
    if output.finish_reason == pb.FINISH_REASON_ERROR:
        raise DemoFailed(output.error_message or "the engine failed")
    return output


async def _drain(running: Sidecar) -> None:
    if exit_code := await running.stop():
        raise DemoFailed(f"{running.name} ended with exit code {exit_code}")


def _hide(text: str) -> None:
    """Logs are shown only when a process dies: SidecarDied has the last lines."""
