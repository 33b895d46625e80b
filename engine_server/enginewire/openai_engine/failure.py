"""What the server's refusals mean for a request that was accepted here.

The server's own words are for the log: they may hold paths or prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from enginewire.server.failures import EngineDead, EngineError, EngineMistake, InvalidRequest, QueueFull

log = logging.getLogger(__name__)

MOST_WORDS: Final = 500
BUSY: Final = 429
NOT_SERVING: Final = frozenset({502, 503, 504})
"""Of a server that loads its model or ends, or of a proxy that finds none."""
SERVER_ERRORS: Final = range(500, 600)
FAULTS_OF_THE_REQUEST: Final = frozenset({400, 413, 422})


class Refused(Exception):
    """The server answers with an error. `words` are its own, on one line of bounded length."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"HTTP {status}: {words}")
        self.status = status

    @classmethod
    def by(cls, status: int, answer: object) -> Refused:
        """From what came with the status: JSON as OpenAI's servers send it, or anything else."""
        error = answer.get("error", answer) if isinstance(answer, Mapping) else answer
        words = error.get("message", error) if isinstance(error, Mapping) else error
        if isinstance(error, Mapping) and isinstance(error.get("code"), int):
            status = error["code"]
        return cls(status, one_line(str(words)))


def one_line(words: str) -> str:
    """For the operator: of bounded length, escaped."""
    return words[:MOST_WORDS].encode("unicode_escape").decode("ascii")


def failure_of(error: Refused, request_id: str) -> EngineError:
    """The failure of a request that the server has refused, or given up."""
    words = f"request {request_id}: the server behind answers with {error}"
    if error.status in FAULTS_OF_THE_REQUEST:
        log.warning("%s", words)
        return InvalidRequest("request: the engine cannot serve this")
    if error.status in NOT_SERVING:
        log.warning("%s", words)
        return EngineDead("the engine does not serve")
    if error.status == BUSY:
        log.warning("%s", words)
        return QueueFull("the engine has too much to do", retry_after=1.0)
    return EngineMistake(words)
