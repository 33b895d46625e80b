"""The reference engine in plain torch: a scheduler, a paged KV cache and one step thread.

Knows nothing about gRPC or the shell. Importing this package imports no torch: only the step
thread does, so that one thread alone ever enters it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginewire.torch_engine.engine import TorchEngine
    from enginewire.torch_engine.options import TorchEngineOptions

__all__ = [
    "TorchEngine",
    "TorchEngineOptions",
]

_HOMES = {
    "TorchEngine": "engine",
    "TorchEngineOptions": "options",
}


def __getattr__(name: str) -> object:
    """Load on first use: the guide compiler's worker comes by here and needs neither."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
