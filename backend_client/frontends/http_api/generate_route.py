"""One POST route: body in, choices out, as a stream of events or in one piece.

Holds the life of an answer: refused before it begins, ended by its caller, by a failure, or well. Knows
nothing about what is special about an endpoint.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.types import Receive, Scope, Send

from backend_client.failure import RequestFailed
from backend_client.frontends.http_api.answer import Answer, Head
from backend_client.frontends.http_api.asked import Asked
from backend_client.frontends.http_api.body import Body, InvalidBody
from backend_client.frontends.http_api.endpoint import Endpoint
from backend_client.frontends.http_api.incoming import CallerLeft, read_body, until_left
from backend_client.frontends.http_api.prompt_streams import Placed, PromptStreams
from backend_client.frontends.http_api.refusal import Refusal, Refused, draining, invalid, refusal_of
from backend_client.frontends.http_api.reply import Reply
from backend_client.frontends.text_backend import TextBackend

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServedBackend:
    """What all routes share. `timeout` in seconds; `max_body_bytes` bounds one request.

    `live` has every answer on its way, so that the end of the server can end them.
    """

    backend: TextBackend
    timeout: float | None
    max_body_bytes: int
    live: set[PromptStreams] = field(default_factory=set)

    def refuse_live(self) -> None:
        """Tell every caller that the server is shutting down."""
        for streams in self.live:
            streams.refuse(draining())

    async def model_name(self) -> str:
        """What users call the model. Raises RequestFailed."""
        config = (await self.backend.backend.client.info()).config
        return config.served_model_name or config.model


class GenerateRoute:
    """The ASGI application of one endpoint."""

    def __init__(self, endpoint: Endpoint, served: ServedBackend) -> None:
        self._endpoint = endpoint
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a caller who leaves aborts it."""
        reply = Reply(send)
        try:
            body = Body.parse(await read_body(scope, receive, self._served.max_body_bytes))
            await until_left(receive, self._answer(self._endpoint.read(body), reply))
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

    async def _answer(self, asked: Asked, reply: Reply) -> None:
        """Raises Refused and RequestFailed."""
        answer_id = f"{self._endpoint.id_prefix}-{uuid.uuid4().hex}"
        streams = PromptStreams(self._served.backend, asked, self._served.timeout, answer_id)
        self._served.live.add(streams)
        try:
            async with streams:
                # Until the first output a refusal still gets a status code of its own.
                batch = await streams.read()
                answer = await self._begun(asked, answer_id)
                if asked.is_stream:
                    await reply.begin_events(answer_id)
                    await _stream(answer, batch, streams, reply)
                else:
                    await reply.whole(await _whole(answer, batch, streams), answer_id)
        finally:
            self._served.live.discard(streams)

    async def _begun(self, asked: Asked, answer_id: str) -> Answer:
        model = asked.model or await self._served.model_name()
        head = Head(answer_id, int(time.time()), model)
        return Answer(self._endpoint, asked, head, self._served.backend.backend.vocabulary)


async def _stream(answer: Answer, batch: list[Placed], streams: PromptStreams, reply: Reply) -> None:
    while batch:
        if events := answer.events(batch):
            await reply.events(events)
        batch = await streams.read()
    await reply.last_events(answer.last_events())


async def _whole(answer: Answer, batch: list[Placed], streams: PromptStreams) -> bytes:
    while batch:
        answer.add(batch)
        batch = await streams.read()
    return answer.whole()


def _internal(error: Exception) -> Refusal:
    """An opaque id under which the log has the rest: an exception's text may hold prompts or paths."""
    error_id = secrets.token_hex(6)
    log.error("unexpected failure %s", error_id, exc_info=error)
    return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"internal error {error_id}", code="internal")
