"""The backend: turns an engine's tokens into text. Never imports torch or transformers.

What a gateway in Python needs is importable from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginewire.backend.backend import Backend
    from enginewire.backend.decoding.annotated import Annotated, BackendOutput
    from enginewire.backend.decoding.vocabulary import Vocabulary
    from enginewire.backend.engines.connection.client import EngineClient
    from enginewire.backend.engines.endpoint import Endpoint
    from enginewire.backend.engines.endpoints import Endpoints
    from enginewire.backend.engines.failure import Failure, RequestFailed
    from enginewire.backend.replay.retry import RetryPolicy

__all__ = [
    "Annotated",
    "Backend",
    "BackendOutput",
    "Endpoint",
    "Endpoints",
    "EngineClient",
    "Failure",
    "RequestFailed",
    "RetryPolicy",
    "Vocabulary",
]

_HOMES = {
    "Annotated": "decoding.annotated",
    "Backend": "backend",
    "BackendOutput": "decoding.annotated",
    "Endpoint": "engines.endpoint",
    "Endpoints": "engines.endpoints",
    "EngineClient": "engines.connection.client",
    "Failure": "engines.failure",
    "RequestFailed": "engines.failure",
    "RetryPolicy": "replay.retry",
    "Vocabulary": "decoding.vocabulary",
}


def __getattr__(name: str) -> object:
    """Load on first use: `enginewire top` comes by here and needs no tokenizers."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
