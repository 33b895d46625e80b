"""What every POST route does around its answer: read the body, watch the caller, say what went wrong.

Knows nothing about what is asked.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from enginewire.backend.engines.failure import RequestFailed, internal_failure
from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.calls.direct_body import direct_body
from enginewire.backend.frontends.http_api.calls.incoming import CallerLeft, read_body, until_left
from enginewire.backend.frontends.http_api.calls.reply import Reply
from enginewire.backend.frontends.http_api.refusal import Refusal, Refused, invalid, refusal_of
from enginewire.tracing.trace_context import passed_on

log = logging.getLogger(__name__)


class PostRoute(ABC):
    """An ASGI application."""

    @abstractmethod
    async def answer(self, body: Body, reply: Reply, trace: Mapping[str, str]) -> None:
        """Answer one request, under the caller's `trace`.

        May raise InvalidBody, Refused and RequestFailed, as long as it can be said.
        """

    def headers(self) -> Mapping[str, str]:
        """Headers of every answer."""
        return {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a caller who leaves aborts it."""
        reply = Reply(send, scope["path"], self.headers, direct_body(scope))
        try:
            body = Body.parse(await read_body(scope, receive))
            await until_left(receive, self.answer(body, reply, passed_on(Headers(scope=scope))))
        except CallerLeft:
            log.debug("a caller left")
        except InvalidBody as error:
            await reply.refuse(invalid(str(error), error.field or None))
        except Refused as error:
            await reply.refuse(error.refusal)
        except RequestFailed as error:
            await reply.refuse(refusal_of(error.failure, lambda field: None))
        except Exception as error:  # noqa: BLE001  # the outermost boundary: a traceback may hold a prompt
            await reply.refuse(_internal(error))


def _internal(error: Exception) -> Refusal:
    return refusal_of(internal_failure("", error), lambda field: None)
