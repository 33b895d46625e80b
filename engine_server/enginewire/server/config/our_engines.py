"""The engines that come with the server, by the names that `--engine` has for them. Imports none of them."""

from __future__ import annotations

from enum import StrEnum


class OurEngine(StrEnum):
    """An engine of ours; every other one is `module:Class`."""

    TORCH = "torch"
    MOCKER = "mocker"
    UPSTREAM = "upstream"
    VLLM = "vllm"
    OPENAI = "openai"


NAMES = ", ".join(OurEngine)
