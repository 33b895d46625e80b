"""The life of a command: reach or launch the engine, run, and leave nothing behind.

Holds what `generate`, `jsonl` and `serve` share. Knows nothing about what they do with the backend.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.config import BackendOptions, ServeOptions
from enginewire.backend.decoding.annotated import Failure
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.discovery.address import Address
from enginewire.backend.engines.discovery.following import endpoints_of
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.stream import Patience
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.processes.engine_output import EngineOutput
from enginewire.backend.processes.relaunch import Launch
from enginewire.backend.processes.sidecar import SidecarDied
from enginewire.backend.processes.stop_signals import StopSignals
from enginewire.backend.prompting.prompts import InvalidPrompt
from enginewire.backend.prompting.tokenizer import BackendTokenizer, InvalidTokenizer
from enginewire.backend.replay.retry import RetryPolicy
from enginewire.calling.trust import trust_of
from enginewire.listening.sockets import AddressError
from enginewire.program import event_loop
from enginewire.program.logs import configure_logs

EXIT_FAILED: Final = 1
EXIT_ADDRESS: Final = 98

Work = Callable[[TextBackend], Coroutine[None, None, int]]


def run_command(
    options: BackendOptions,
    work: Work,
    signals: StopSignals | None = None,
    *,
    prog: str = "enginewire-backend",
    output: EngineOutput | None = None,
) -> int:
    """Run `work` on a backend until it ends or a signal comes; failures become one line and exit code 1."""
    configure(options)
    try:
        return run_until_signal(with_backend(options, work, output), signals)
    except RequestFailed as error:
        message = describe(error.failure)
    except AddressError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return EXIT_ADDRESS
    except (InvalidPrompt, InvalidTokenizer, SidecarDied) as error:
        message = str(error)
    print(f"{prog}: {message}", file=sys.stderr)
    return EXIT_FAILED


def configure(options: BackendOptions) -> None:
    """Log lines of a server are for programs too; those of a command are for whoever typed it."""
    if isinstance(options, ServeOptions):
        configure_logs(options.log_level, options.log_format)
    else:
        logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)


def describe(failure: Failure) -> str:
    """A failure in one line: its reason's name, then what happened."""
    reason = pb.ErrorReason.Name(failure.reason).removeprefix("ERROR_REASON_")
    return f"{reason}: {' '.join(failure.message.split())}"


def run_until_signal(command: Coroutine[None, None, int], signals: StopSignals | None = None) -> int:
    """The exit code of `command`, or 128 + the number of the signal that ended it.

    Ctrl-C and SIGTERM cancel the command, so that it aborts its requests upstream.
    """
    ending = signals or StopSignals()

    async def run() -> int:
        return await ending.run(asyncio.ensure_future(command))

    with ending.installed():
        return event_loop.run(run())


async def with_backend(options: BackendOptions, work: Work, output: EngineOutput | None = None) -> int:
    """The exit code of `work` on a backend whose engine is ready. `output` is for that of a launched one.

    Raises RequestFailed when the engine cannot be reached, SidecarDied when a launched one ends before it
    was ready, or again and again.
    """
    if not options.launch:
        return await _on_engines(options, options.target, work)
    launch = Launch(options.launch_command, output=output)

    async def restartable(backend: TextBackend) -> int:
        launch.ready()
        return await work(backend)

    return await launch.run(lambda target: _on_engines(options, [target], restartable))


async def _on_engines(options: BackendOptions, targets: Sequence[str], work: Work) -> int:
    async with (
        _endpoints(options, targets) as engines,
        _endpoints(options, options.prefill_target) as prefill,
    ):
        ready = await engines.wait_ready(options.connect_timeout)
        if options.prefill_target:
            await prefill.wait_ready(options.connect_timeout)
        tokenizer = await load_tokenizer(ready, options.tokenizer)
        backend = Backend(
            engines,
            tokenizer.vocabulary,
            validate_engine_decode=options.validate_engine_decode,
            retry=RetryPolicy(recovery=options.connect_timeout) if options.replay else None,
            prefill=prefill if options.prefill_target else None,
        )
        return await work(TextBackend(backend, tokenizer))


def _endpoints(options: BackendOptions, targets: Sequence[str]) -> AbstractAsyncContextManager[Endpoints]:
    trust, patience = trust_of(options), Patience(options.first_token_timeout, options.token_timeout)

    def dial(address: Address) -> EngineClient:
        own = trust.named(address.name)
        return EngineClient(address.target, multiplexed=options.multiplexed, patience=patience, trust=own)

    return endpoints_of(targets, dial, options.target_refresh_interval)


async def load_tokenizer(client: EngineClient, folder: Path | None) -> BackendTokenizer:
    """The tokenizer in `folder`, else the engine's. Raises InvalidTokenizer and RequestFailed."""
    if folder is not None:
        try:
            return await asyncio.to_thread(BackendTokenizer.from_folder, folder)
        except InvalidTokenizer as error:
            raise InvalidTokenizer(f"--tokenizer {folder}: {error}") from error
    return await asyncio.to_thread(BackendTokenizer.from_files, await client.tokenizer_files())
