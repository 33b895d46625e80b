"""What is generated when a request does not say, and the commands that generate."""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewire.backend.config.reaching import BackendOptions
from enginewire.options import OptionError, option

STANDARD_STREAM: Final = Path("-")
MAX_UINT32: Final = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults(BackendOptions):
    """How to generate when a request does not say; None leaves the choice to the engine."""

    max_tokens: int | None = option(
        None,
        "most tokens to generate",
        unit="tokens",
        at_least=1,
        at_most=MAX_UINT32,
        heading="generation",
        contract="StopConditions.max_tokens",
    )
    min_tokens: int | None = option(
        None,
        "no stop before this many tokens",
        unit="tokens",
        at_least=0,
        at_most=MAX_UINT32,
        contract="StopConditions.min_tokens",
    )
    temperature: float | None = option(
        None,
        "randomness; 0 always takes the most probable token",
        at_least=0,
        at_most=100,
        contract="SamplingOptions.temperature",
    )
    top_p: float | None = option(
        None,
        "keep the most probable tokens that add up to this",
        at_least=0,
        at_most=1,
        contract="SamplingOptions.top_p",
    )
    top_k: int | None = option(
        None,
        "keep this many most probable tokens; 0 keeps all",
        at_least=-1,
        at_most=2**31 - 1,
        contract="SamplingOptions.top_k",
    )
    min_p: float | None = option(
        None,
        "drop tokens below this fraction of the best one's probability",
        at_least=0,
        at_most=1,
        contract="SamplingOptions.min_p",
    )
    seed: int | None = option(
        None, "makes the result repeatable", at_least=0, at_most=2**64 - 1, contract="SamplingOptions.seed"
    )
    n: int | None = option(
        None, "answers to generate", at_least=1, at_most=MAX_UINT32, contract="SamplingOptions.n"
    )
    stop: tuple[str, ...] = option((), "text that ends the answer", contract="StopConditions.stop")
    ignore_eos: bool = option(
        False, "go on after the end of the answer", contract="StopConditions.ignore_eos"
    )

    def __post_init__(self) -> None:
        # The zero-argument form finds no class in a dataclass with slots.
        BackendOptions.__post_init__(self)
        if self.top_p == 0:
            raise OptionError("--top-p must be above 0")
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionError("--min-tokens must not be above --max-tokens")
        if "" in self.stop:
            raise OptionError("--stop must not be empty: it would stop at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions(SamplingDefaults):
    """Options of `enginewire-backend generate`: one prompt in, its text streamed out."""

    prompt: str = option(
        "", "the question; read from standard input when not set", positional=True, heading="prompt"
    )
    chat: bool = option(True, "put the prompt into the model's chat template")
    system: str = option("", "instructions that come before the prompt in the chat template")
    json: bool = option(False, "print every item of the answer as a JSON line instead of its text")

    def __post_init__(self) -> None:
        SamplingDefaults.__post_init__(self)
        if self.system and not self.chat:
            raise OptionError("--system needs --chat: without a chat template there is no place for it")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlOptions(SamplingDefaults):
    """Options of `enginewire-backend jsonl`: JSON lines in, annotated JSON lines out."""

    input: Path = option(
        STANDARD_STREAM,
        "file of requests, one JSON object per line; - is standard input",
        positional=True,
        heading="files",
    )
    output: Path = option(STANDARD_STREAM, "file for the answers; - is standard output")
    concurrency: int = option(64, "most requests at the same time", at_least=1)
    max_line_bytes: int = option(8 * 2**20, "longest line of the input", unit="bytes", at_least=1024)
