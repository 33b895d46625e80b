"""What `enginewire chat` takes beyond the options that commands share.

Knows nothing about how the options are carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from enginewire.backend.config import SamplingDefaults
from enginewire.options import Loaded, OptionError, option

DEFAULT_MODEL: Final = "builtin:demo"
# What reaches an engine means nothing to a backend that has its own.
OF_ENGINES: Final = ("target", "prefill_target", "launch", "tokenizer", "multiplexed", "replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(SamplingDefaults):
    """Options of `enginewire chat`. Without `backend` one runs in this process, on `target` or `launch`."""

    backend: str = option(
        "",
        "a running backend to talk to, such as unix:/run/backend.sock or localhost:50052; else the chat has"
        f" its own, on --target or on an engine that it launches, {DEFAULT_MODEL} without --launch",
        positional=True,
        heading="chat",
    )
    system: str = option("", "instructions that come before the conversation")
    tokens: bool = option(False, "show where each token begins")

    def __post_init__(self) -> None:
        SamplingDefaults.__post_init__(self)
        if "://" in self.backend and not self.backend.startswith(("unix://", "dns://")):
            raise OptionError(
                f"BACKEND: {self.backend} is no gRPC name such as unix:/run/backend.sock or localhost:50052;"
                " `enginewire serve` prints its own"
            )
        if (self.n or 1) > 1:
            raise OptionError("--n: a chat has one answer")


def choose(loaded: Loaded[ChatOptions]) -> ChatOptions:
    """Somebody has to answer. Raises OptionError when two of them were named."""
    options, given = loaded.options, loaded.sources
    if options.backend:
        for name in OF_ENGINES:
            if name in given:
                raise OptionError(f"{given[name]}: the backend {options.backend} has its own engine")
        return options
    if "target" in given or options.launch:
        return options
    return replace(options, launch=DEFAULT_MODEL)
