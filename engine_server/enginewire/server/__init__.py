"""The sidecar: runs an engine behind `enginewire.v1`. Imports no torch; engines bring their own.

What an engine's author needs is importable from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginewire.server.config.options import ServerOptions
    from enginewire.server.engines.answer import Answer
    from enginewire.server.engines.base import BaseEngine
    from enginewire.server.engines.interface import (
        AdapterEngine,
        AdapterSource,
        EmbeddingEngine,
        GenerateContext,
        HandingOverEngine,
        Item,
        LLMEngine,
        MetricsBindings,
        MetricsContext,
        NamedEngine,
        PrefixCacheEngine,
        PreparingEngine,
        StepEngine,
        StepListener,
        StepOutputs,
        Tokenizer,
    )
    from enginewire.server.engines.mocker.engine import MockerEngine
    from enginewire.server.engines.mocker.options import MockerOptions
    from enginewire.server.failures import (
        ContextExceeded,
        Draining,
        EngineError,
        InvalidRequest,
        KvExhausted,
        ModelNotFound,
        QueueFull,
        StepFailed,
        Unsupported,
    )
    from enginewire.server.server import EngineServer

__all__ = [
    "AdapterEngine",
    "AdapterSource",
    "Answer",
    "BaseEngine",
    "ContextExceeded",
    "Draining",
    "EmbeddingEngine",
    "EngineError",
    "EngineServer",
    "GenerateContext",
    "HandingOverEngine",
    "InvalidRequest",
    "Item",
    "KvExhausted",
    "LLMEngine",
    "MetricsBindings",
    "MetricsContext",
    "MockerEngine",
    "MockerOptions",
    "ModelNotFound",
    "NamedEngine",
    "PrefixCacheEngine",
    "PreparingEngine",
    "QueueFull",
    "ServerOptions",
    "StepEngine",
    "StepFailed",
    "StepListener",
    "StepOutputs",
    "Tokenizer",
    "Unsupported",
]

_HOMES = {
    "AdapterEngine": "engines.interface",
    "AdapterSource": "engines.interface",
    "Answer": "engines.answer",
    "BaseEngine": "engines.base",
    "ContextExceeded": "failures",
    "Draining": "failures",
    "EmbeddingEngine": "engines.interface",
    "EngineError": "failures",
    "EngineServer": "server",
    "GenerateContext": "engines.interface",
    "HandingOverEngine": "engines.interface",
    "InvalidRequest": "failures",
    "Item": "engines.interface",
    "KvExhausted": "failures",
    "LLMEngine": "engines.interface",
    "MetricsBindings": "engines.interface",
    "MetricsContext": "engines.interface",
    "MockerEngine": "engines.mocker.engine",
    "MockerOptions": "engines.mocker.options",
    "ModelNotFound": "failures",
    "NamedEngine": "engines.interface",
    "PrefixCacheEngine": "engines.interface",
    "PreparingEngine": "engines.interface",
    "QueueFull": "failures",
    "ServerOptions": "config.options",
    "StepEngine": "engines.interface",
    "StepFailed": "failures",
    "StepListener": "engines.interface",
    "StepOutputs": "engines.interface",
    "Tokenizer": "engines.interface",
    "Unsupported": "failures",
}


def __getattr__(name: str) -> object:
    """Load on first use: an engine that comes by here for the interface must not load the server."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
