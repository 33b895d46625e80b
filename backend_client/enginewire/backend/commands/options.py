"""What each command takes beyond the options that commands share.

Knows nothing about how the options are carried out.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from enginewire.addresses import default_socket
from enginewire.backend.config import MAX_UINT32, GenerateOptions
from enginewire.calling.trust import TargetOptions, trust_of
from enginewire.options import OptionError, computed, option


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLineOptions(GenerateOptions):
    """Options of `enginewire-backend generate`. The prompt is completed as it is under `raw`."""

    prompt_file: Path | None = option(None, "read the prompt from this file", heading="prompt")
    raw: bool = option(False, "complete the prompt as it is, without the model's chat template")
    stop_token_ids: tuple[int, ...] = option(
        (),
        "token id that ends the answer",
        at_least=0,
        at_most=MAX_UINT32,
        heading="generation",
        contract="StopConditions.stop_token_ids",
    )
    logprobs: int | None = option(
        None,
        "log-probabilities of this many alternatives per token; shown by --json",
        at_least=0,
        at_most=MAX_UINT32,
        contract="OutputOptions.logprobs",
    )
    stats: bool = option(
        False, "print why the answer ended, its usage and its speed to standard error", heading="prompt"
    )

    def __post_init__(self) -> None:
        GenerateOptions.__post_init__(self)
        if self.prompt and self.prompt_file is not None:
            raise OptionError("--prompt and --prompt-file exclude each other")
        if self.system and self.raw:
            raise OptionError("--system and --raw exclude each other: there is no place for it")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of `enginewire demo`."""

    model: str = option("builtin:demo", "model to talk to: a folder, or builtin:demo", positional=True)
    engine: str = option("torch", "engine to run: torch, mocker, or module:Class of your own")
    ready_timeout: float = option(300.0, "how long the processes may take to start", unit="s", at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions(TargetOptions):
    """Options of `enginewire top`."""

    ENV_PREFIX: ClassVar[str] = "ENGINEWIRE_TOP_"

    target: tuple[str, ...] = option(
        computed(lambda: (f"unix:{default_socket('engine')}",), "unix:<the engine's default --uds>"),
        "an engine to watch: a gRPC name such as unix:/run/engine.sock or localhost:50051",
        heading="target",
    )
    once: bool = option(
        False, "look once and end, with 1 when an engine did not answer", heading="what to show"
    )
    json: bool = option(False, "print a line of JSON per look instead of a table")
    interval: float = option(0.5, "how often to look", unit="s", at_least=0.05)
    timeout: float = option(2.0, "how long an engine may take to answer --once", unit="s", at_least=0.05)

    def __post_init__(self) -> None:
        trust_of(self)
