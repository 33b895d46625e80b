"""Is this an engine, or a class of one? Says which method is missing or not written as the shell calls it.

Looks at the class only: nothing is called. Knows nothing about what an engine answers.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Iterator
from types import ModuleType
from typing import Final

ARGUMENTS: Final = {
    "start": ("worker_id",),
    "generate": ("request", "context"),
    "abort": ("context",),
    "drain": (),
    "cleanup": (),
    "kv_event_sources": (),
    "setup_metrics": ("context",),
    "load": (),
    "tokenizer": (),
}
"""The methods of `LLMEngine`, and what each is called with."""

PLAIN: Final = ("load", "tokenizer")
"""Those that answer at once; `generate` yields, and all others are awaited."""

WHOLE: Final = {
    "a step engine": ("set_step_listener", "submit", "stalled_for"),
    "an engine with a prefix cache": ("subscribe_kv_events", "reset_prefix_cache"),
    "an engine with adapters": ("load_adapter", "unload_adapter"),
    "an engine that embeds": ("embed", "embedding_size", "only_embeds"),
}
"""What an engine may add: all of it or nothing."""


def fault_of_class(factory: object) -> str | None:
    """Why no engine can be made by calling it with the options, as a sentence; None: it can."""
    if not callable(factory):
        return f"is {_article(type(factory).__name__)} and not a class"
    if isinstance(factory, ABCMeta) and factory.__abstractmethods__:
        return f"no method {_listed(sorted(factory.__abstractmethods__))}"
    if not takes(factory, ("options",)):
        return "its constructor must take one argument, the server's options: `def __init__(self, options)`"
    return None


def engine_classes(module: ModuleType) -> list[str]:
    """The names under which a module has classes that generate, those of this package left out."""
    return sorted(
        name
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and hasattr(kind, "generate") and not kind.__module__.startswith(__package__)
    )


def fault_of(engine: object) -> str | None:
    """What the shell could not work with, as a sentence about the first such thing; None: it is an engine."""
    return next(_faults(engine), None)


def _faults(engine: object) -> Iterator[str]:
    missing = [name for name in ARGUMENTS if not _has(engine, name)]
    if missing:
        base = "enginewire.server.engines.base"
        yield f"no method {_listed(missing)}; BaseEngine of {base} has all but two of them"
        return
    for name in ARGUMENTS:
        yield from _faults_of_method(name, getattr(engine, name))
    for what, names in WHOLE.items():
        there = [name for name in names if _has(engine, name)]
        if there and len(there) < len(names):
            lacks = _listed([name for name in names if name not in there])
            yield f"{_listed(there)} without {lacks}: {what} has all of them"


def _faults_of_method(name: str, method: object) -> Iterator[str]:
    if not callable(method):
        yield f"{name} is {type(method).__name__} and not a method"
        return
    if name == "generate" and inspect.iscoroutinefunction(method):
        yield "generate is a coroutine: `async def` without a `yield`; it must yield its outputs"
    if name == "generate" and inspect.isgeneratorfunction(method):
        yield "generate is a plain `def` with a `yield`: it must be an `async def`"
    if name in PLAIN and inspect.iscoroutinefunction(method):
        yield f"{name} is a coroutine: it must be a plain `def`, for it answers at once"
    if name != "generate" and (inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method)):
        yield f"{name} has a `yield`; it must return"
    if not takes(method, ARGUMENTS[name]):
        yield f"{name} must take ({', '.join(('self', *ARGUMENTS[name]))})"


def takes(method: object, arguments: tuple[str, ...]) -> bool:
    """True when `method` can be called with so many arguments."""
    try:
        inspect.signature(method).bind(*arguments)  # type: ignore[arg-type]  # callable, as was checked
    except TypeError:
        return False
    except ValueError:  # it has none, being written in C
        return True
    return True


def _has(engine: object, name: str) -> bool:
    # Not by asking the object: properties need not work before the start.
    return hasattr(type(engine), name) or name in getattr(engine, "__dict__", {})


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOUaeiou' else 'a'} {noun}"


def _listed(names: list[str]) -> str:
    return ", ".join(names)
