"""The grammar libraries of an engine, and which of them takes a guide.

What one library cannot do another can: xgrammar does not keep every keyword of a schema, or takes seconds for
groups of any length with a vocabulary of 150,000 tokens, and llguidance has no structural tags. Knows nothing
about any one library, or how a grammar is compiled.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from enginewire.server.failures import EngineDead, EngineError, InvalidRequest, Unsupported
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.guided.compiler import GrammarCompiler
from enginewire.torch_engine.guided.library import KINDS, NO_ANY_WHITESPACE, Vocabulary
from enginewire.torch_engine.guided.matcher import CompiledGuide
from enginewire.torch_engine.requests.params import Guide

FIELD = "sampling_options.guided_decoding"
MAX_REMEMBERED = 256
"""Guides of which it is known who takes them."""


class GuidedBackends:
    """The compilers of all libraries that are installed, the default one first."""

    def __init__(self, compilers: Mapping[str, GrammarCompiler], whitespace: str | None = None) -> None:
        """`whitespace` is for guides that say nothing about it, see Guide."""
        self._compilers = compilers
        self._whitespace = whitespace
        self._lock = threading.Lock()
        # Who took what the libraries before it had refused: they need not be asked again.
        self._takers: OrderedDict[Guide, str] = OrderedDict()

    @property
    def names(self) -> list[str]:
        """What a request may name, the default first."""
        return list(self._compilers)

    @property
    def kinds(self) -> list[str]:
        """The kinds of guide that any of them can follow."""
        return list(dict.fromkeys(kind for name in self._compilers for kind in KINDS[name]))

    def compile(self, guide: Guide) -> Future[CompiledGuide]:
        """By the library that was asked for, else by the first that takes it. Never blocks.

        Raises Unsupported, QueueFull; the future raises InvalidRequest with the reasons of all asked.
        """
        if guide.whitespace is None:
            guide = replace(guide, whitespace=self._whitespace)
        with self._lock:
            taker = self._takers.get(guide)
        first, *others = [taker] if taker else self._able(guide)
        answer = self._compilers[first].compile(guide)
        for name in others:
            answer = unless_refused(answer, partial(self._ask_next, name, guide))
        return answer

    def close(self) -> None:
        """End every compilation. Blocks until they have ended."""
        for compiler in self._compilers.values():
            compiler.close()

    def _ask_next(self, name: str, guide: Guide) -> Future[CompiledGuide]:
        answer = self._compilers[name].compile(guide)
        answer.add_done_callback(partial(self._remember, name, guide))
        return answer

    def _remember(self, name: str, guide: Guide, done: Future[CompiledGuide]) -> None:
        if done.cancelled() or done.exception():
            return
        with self._lock:
            self._takers[guide] = name
            while len(self._takers) > MAX_REMEMBERED:
                self._takers.popitem(last=False)

    def _able(self, guide: Guide) -> list[str]:
        """The library that was asked for, else all that follow guides of this kind."""
        if guide.backend and guide.backend not in self._compilers:
            raise Unsupported(
                f"{FIELD}.backend: must be one of {', '.join(self.names)}", field=f"{FIELD}.backend"
            )
        asked = [guide.backend] if guide.backend else self.names
        able = [name for name in asked if guide.kind in KINDS[name]]
        if not able:
            field = f"{FIELD}.{guide.kind}"
            raise Unsupported(f"{field}: not supported by {', '.join(asked)}", field=field)
        return able


def unless_refused(
    first: Future[CompiledGuide], ask_next: Callable[[], Future[CompiledGuide]]
) -> Future[CompiledGuide]:
    """`first`; where that is an InvalidRequest what comes of `ask_next`, and both where that is one too."""
    answer: Future[CompiledGuide] = Future()
    answer.set_running_or_notify_cancel()

    def settle(done: Future[CompiledGuide], refusal: InvalidRequest | None = None) -> None:
        error = EngineDead("the engine is closed") if done.cancelled() else done.exception()
        if error is None:
            answer.set_result(done.result())
        elif not isinstance(error, InvalidRequest):
            answer.set_exception(error)
        elif refusal:
            answer.set_exception(both(refusal, error))
        else:
            try:
                ask_next().add_done_callback(lambda second: settle(second, error))
            except EngineError as failure:
                answer.set_exception(failure)

    first.add_done_callback(settle)
    return answer


def both(first: InvalidRequest, second: InvalidRequest) -> InvalidRequest:
    """A refusal with the reasons of two, of which the second one is not told twice."""
    reason = str(second).removeprefix(f"{second.field}: ")
    return first if reason in str(first) else InvalidRequest(f"{first}; {reason}", field=first.field)


def open_backends(
    vocabulary: Vocabulary, default: str, *, disable_any_whitespace: bool = False
) -> GuidedBackends | None:
    """All libraries that are installed; None without any. Raises ModelLoadError when `default` is missing."""
    compilers: dict[str, GrammarCompiler] = {}
    for name in sorted(KINDS, key=lambda name: name != default):
        try:
            compilers[name] = GrammarCompiler(name, vocabulary)
        except ImportError:
            if name == default:
                raise ModelLoadError(
                    f"guided_backend: {name} is not installed: pip install 'enginewire[guided]'"
                ) from None
    whitespace = NO_ANY_WHITESPACE if disable_any_whitespace else None
    return GuidedBackends(compilers, whitespace) if compilers else None
