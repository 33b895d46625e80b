"""One POST route: body in, choices out, as a stream of events or in one piece.

Holds the life of an answer: refused before it begins, ended by its caller, by a failure, or well. Knows
nothing about what is special about an endpoint.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from enginewire.backend.frontends.http_api.body import Body
from enginewire.backend.frontends.http_api.openai.answer import Answer, Head
from enginewire.backend.frontends.http_api.openai.answers.format import ModelFormats
from enginewire.backend.frontends.http_api.openai.endpoint import Endpoint
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.post_route import PostRoute
from enginewire.backend.frontends.http_api.openai.prompt_streams import Placed, PromptStreams
from enginewire.backend.frontends.http_api.openai.reply import Reply
from enginewire.backend.frontends.http_api.refusal import Refusal, draining
from enginewire.backend.frontends.text_backend import TextBackend


class Refusable(Protocol):
    """An answer on its way, as the end of the server sees it."""

    def refuse(self, refusal: Refusal) -> None:
        """End it from outside."""
        ...


@dataclass(slots=True)
class ServedBackend:
    """What all routes share. `timeout` in seconds; `formats` say how the model's answers are read.

    `live` has every answer on its way, so that the end of the server can end them; `closing` is set when
    it has begun to end.
    """

    backend: TextBackend
    timeout: float | None
    formats: ModelFormats = field(default_factory=ModelFormats)
    live: set[Refusable] = field(default_factory=set)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def refuse_live(self) -> None:
        """Tell every caller that the server is shutting down."""
        for answer in self.live:
            answer.refuse(draining())

    async def model_name(self, timeout: float | None = None) -> str:
        """What users call the model. Raises RequestFailed."""
        config = (await self.backend.backend.engines.info(timeout)).config
        return config.served_model_name or config.model


class GenerateRoute(PostRoute):
    """The ASGI application of one endpoint."""

    def __init__(self, endpoint: Endpoint, served: ServedBackend) -> None:
        self._endpoint = endpoint
        self._served = served

    async def answer(self, body: Body, reply: Reply, trace: Mapping[str, str]) -> None:
        """Raises InvalidBody, Refused and RequestFailed."""
        asked = self._endpoint.read(body)
        answer_id = f"{self._endpoint.id_prefix}-{asked.request_id or uuid.uuid4().hex}"
        streams = PromptStreams(self._served.backend, asked, self._served.timeout, answer_id, trace)
        self._served.live.add(streams)
        try:
            async with streams:
                # Until the first output a refusal still gets a status code of its own.
                batch = await streams.read()
                answer = await self._begun(asked, answer_id, streams)
                if asked.is_stream:
                    await reply.begin_events(answer_id)
                    await _stream(answer, batch, streams, reply)
                else:
                    await reply.whole(await _whole(answer, batch, streams), answer_id)
        finally:
            self._served.live.discard(streams)

    async def _begun(self, asked: GenerationRequest, answer_id: str, streams: PromptStreams) -> Answer:
        model = asked.model or await self._served.model_name()
        head = Head(answer_id, int(time.time()), model)
        vocabulary = self._served.backend.backend.vocabulary
        return Answer(self._endpoint, asked, head, vocabulary, streams.prompt_ids, streams.prompt_texts)


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
