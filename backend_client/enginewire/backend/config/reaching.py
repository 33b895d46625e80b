"""How a backend reaches its engines, and how long it waits for them."""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from enginewire.addresses import default_socket
from enginewire.backend.engines.discovery.address import InvalidTargets
from enginewire.backend.engines.discovery.sources import sources_of
from enginewire.calling.trust import TargetOptions, trust_of
from enginewire.options import OptionError, computed, option
from enginewire.program.log_choices import LogLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions(TargetOptions):
    """What every command of `enginewire-backend` needs to know: the engine, its tokenizer, patience."""

    # Not the engine's prefix: an engine that `launch` starts inherits this process's environment.
    ENV_PREFIX: ClassVar[str] = "ENGINEWIRE_BACKEND_"

    target: tuple[str, ...] = option(
        computed(lambda: (f"unix:{default_socket('engine')}",), "unix:<the engine's default --uds>"),
        "the engine: a gRPC name such as unix:/run/engine.sock or localhost:50051; several for several"
        " engines of the same model. dns:///name:port are the engines at all its addresses, file:/path those"
        " that the file lists",
        heading="engine",
    )
    prefill_target: tuple[str, ...] = option(
        (),
        "an engine of --role prefill that computes the prompts for targets of --role decode; of several"
        " the one that has the least to do",
        heading="engine",
    )
    target_refresh_interval: float = option(
        5.0,
        "how often to look for engines that have come or gone, where --target is dns: or file:",
        unit="s",
        at_least=0.1,
    )
    launch: str = option(
        "",
        "arguments of an engine server to start on a private socket, and again if it dies",
    )
    tokenizer: Path | None = option(
        None, "folder of the model's tokenizer; asked from the engine when not set"
    )
    multiplexed: bool = option(True, "send all requests over one stream when the engine can")
    validate_engine_decode: bool = option(
        False,
        "always decode here, and warn of an engine whose text or finish reason is not that of its tokens",
    )
    connect_timeout: float = option(
        60.0,
        "how long to wait until the engine is ready, loading included",
        unit="s",
        at_least=0.1,
        heading="patience",
    )
    timeout: float | None = option(
        None, "how long a request may take; forever when not set", unit="s", at_least=0
    )
    first_token_timeout: float = option(
        3600.0,
        "how long an engine may say nothing about a request before its first token, waiting in the queue"
        " included, until it is taken to have forgotten it; 0 is for ever",
        unit="s",
        at_least=0,
    )
    token_timeout: float = option(
        600.0,
        "how long an engine may say nothing about an answer that has begun, until it is taken to have"
        " forgotten it; 0 is for ever",
        unit="s",
        at_least=0,
    )
    replay: bool = option(
        True, "send a request again, or go on with its answer, when its engine is lost or refuses it for now"
    )
    log_level: LogLevel = option(
        "warning", "least severe log line to print; info when serving and not set", heading="logs"
    )

    def __post_init__(self) -> None:
        check_command(self.launch)
        trust_of(self)
        for flag, targets in (("--target", self.target), ("--prefill-target", self.prefill_target)):
            try:
                sources_of(targets)
            except InvalidTargets as error:
                raise OptionError(f"{flag}: {error}") from error

    @property
    def launch_command(self) -> list[str]:
        """The command line to start, split as a shell would; empty = start nothing."""
        return shlex.split(self.launch)


def check_command(command: str) -> None:
    """Raise OptionError when `command` cannot be split into arguments."""
    try:
        shlex.split(command)
    except ValueError as error:
        raise OptionError(f"--launch: {str(error).lower()} in {command!r}") from error
