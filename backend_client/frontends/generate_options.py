"""What `generate` takes beyond the options that commands share.

Knows nothing about how the options are carried out.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend_client.config import MAX_UINT32, GenerateOptions
from enginewire.options import OptionError, option


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
