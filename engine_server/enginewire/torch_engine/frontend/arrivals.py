"""The way of an accepted request into the queue: first what was handed over, then its grammar.

Each may still be on its way. Whichever thread has the last of it queues the request. Knows nothing about
how grammars are compiled or keys and values are read.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from enginewire.server.failures import EngineDead, EngineError, internal
from enginewire.torch_engine.requests.sequence import HandedOver, Request
from enginewire.torch_engine.step_thread import Command

if TYPE_CHECKING:
    from enginewire.torch_engine.guided.matcher import CompiledGuide

Post = Callable[[Command], None]


def arrive(
    request: Request,
    claimed: Future[HandedOver] | None,
    compiled: Future[CompiledGuide] | None,
    post: Post,
) -> None:
    """Queue a request once it has all that it needs, or fail it."""
    if claimed:
        claimed.add_done_callback(lambda future: _take_over(request, future, compiled, post))
    elif compiled:
        compiled.add_done_callback(lambda future: _guide(request, future, post))
    else:
        post(lambda core: core.add(request))


def _take_over(
    request: Request, claimed: Future[HandedOver], compiled: Future[CompiledGuide] | None, post: Post
) -> None:
    error = claimed.exception()
    if error is None:
        request.handed_over = claimed.result()
        arrive(request, None, compiled, post)
        return
    failure = _failure_of(error, "the hand-off could not be read")
    post(lambda core: core.live.reject(request, failure))


def _guide(request: Request, compiled: Future[CompiledGuide], post: Post) -> None:
    error = EngineDead("the engine is closed") if compiled.cancelled() else compiled.exception()
    if error is None:
        request.grammar = compiled.result()
        post(lambda core: core.add(request))
        return
    failure = _failure_of(error, "the grammar was not compiled")
    post(lambda core: core.live.reject(request, failure))


def _failure_of(error: BaseException, what: str) -> EngineError:
    return error if isinstance(error, EngineError) else internal(what, error)
