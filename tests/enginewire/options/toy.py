"""Options of a program that does not exist, with one of every kind."""

# ruff: noqa: RUF009

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from enginewire.options import OptionError, computed, option


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    ENV_PREFIX: ClassVar[str] = "TOY_"

    model: str = option("tiny", "model to serve", positional=True, aliases=("--model-path",), heading="model")
    port: int | None = option(None, "port", at_least=0, at_most=65535)
    seqs: int = option(64, "sequences", at_least=1, contract="EngineConfig.max_num_seqs")
    memory: int = option(4096, "memory | cache", unit="bytes")
    patience: float = option(1.5, "patience", unit="s", at_least=0, heading="life")
    color: Literal["red", "blue"] = option("red", "100% colour")
    names: tuple[str, ...] = option((), "names")
    sizes: tuple[int, ...] = option((1, 2), "sizes")
    folder: Path | None = option(None, "folder")
    socket: Path = option(computed(lambda: Path("/here"), "somewhere"), "socket")
    warm_up: bool = option(False, "warm up")
    api_key: str = option("", "key", secret=True)

    def __post_init__(self) -> None:
        if self.color == "blue" and self.warm_up:
            raise OptionError("--color blue and --warm-up exclude each other")
