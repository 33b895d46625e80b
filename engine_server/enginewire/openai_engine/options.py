"""Which completions server to call, and how. Knows nothing about HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from enginewire.access.target_key import TargetKey
from enginewire.server.engines.remote.options import RemoteOptions

ServerKind = Literal["auto", "llama.cpp", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIEngineOptions(RemoteOptions):
    """`target` is the URL of the server, with or without `/v1` at its end.

    `folder` is the model's, in the layout of Hugging Face or `builtin:demo`: for what the server does not say
    of it, its tokenizer above all. "" is none.
    """

    server: ServerKind = "auto"
    folder: str = ""
    api_key: TargetKey | None = None
