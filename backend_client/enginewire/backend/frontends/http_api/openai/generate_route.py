"""One POST route: body in, choices out, as a stream of events or in one piece.

Holds the life of an answer: refused before it begins, ended by its caller, by a failure, or well. Knows
nothing about what is special about an endpoint.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.body import Body
from enginewire.backend.frontends.http_api.calls.direct_body import DirectBody
from enginewire.backend.frontends.http_api.calls.post_route import PostRoute
from enginewire.backend.frontends.http_api.calls.rate_limits import rate_limit_headers
from enginewire.backend.frontends.http_api.calls.reply import Reply
from enginewire.backend.frontends.http_api.openai.answer import Answer, Head
from enginewire.backend.frontends.http_api.openai.answers.format import ModelFormats
from enginewire.backend.frontends.http_api.openai.endpoint import Endpoint
from enginewire.backend.frontends.http_api.openai.fields.tokenizer import carry_out
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.prompts.streams import Placed, PromptStreams
from enginewire.backend.frontends.http_api.refusal import Refusal, Refused, draining, no_such_model
from enginewire.backend.frontends.text_backend import TextBackend

Asked = TypeVar("Asked", bound=GenerationRequest)

INFO_TIMEOUT_SECONDS: Final = 2.0


class Refusable(Protocol):
    """An answer on its way, as the end of the server sees it."""

    def refuse(self, refusal: Refusal) -> None:
        """End it from outside."""
        ...


@dataclass(slots=True)
class ServedBackend:
    """What all routes share. `timeout` in seconds; `formats` say how the model's answers are read.

    `allows_adapters` lets callers load adapters and unload them. `names` are what callers call the model, the
    first one in answers; without any they are the engine's. `live` has every answer on its way, so that
    the end of the server can end them; `closing` is set when it has begun to end.
    """

    backend: TextBackend
    timeout: float | None
    formats: ModelFormats = field(default_factory=ModelFormats)
    allows_adapters: bool = False
    names: Sequence[str] = ()
    live: set[Refusable] = field(default_factory=set)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def refuse_live(self) -> None:
        """Tell every caller that the server is shutting down."""
        for answer in self.live:
            answer.refuse(draining())

    async def config_of(self, model: str | None, param: str = "model") -> pb.EngineConfig:
        """What the engine says of itself, if it answers to the name that came as `param`.

        "" and None are the served model. Raises Refused and RequestFailed.
        """
        engines = self.backend.backend.engines
        config = (await engines.info(INFO_TIMEOUT_SECONDS)).config
        if not model or model in (self.names or (config.model, *engine_names(config))):
            return config
        if model in {each.name for each in await engines.adapters(INFO_TIMEOUT_SECONDS)}:
            return config
        raise Refused(no_such_model(param))

    async def model_name(self, timeout: float | None = None) -> str:
        """What users call the model. Raises RequestFailed."""
        return (await self.all_names(timeout))[0]

    async def all_names(self, timeout: float | None = None) -> Sequence[str]:
        """All that callers may call the model, the first one in answers. Raises RequestFailed."""
        return self.names or engine_names((await self.backend.backend.engines.info(timeout)).config)

    async def name_in_answer(self, asked: str) -> str:
        """The model's first name, whichever the caller used; an adapter's own. Raises RequestFailed."""
        config = (await self.backend.backend.engines.info(None)).config
        first, *others = self.names or engine_names(config)
        return first if asked in ("", config.model, *others) else asked

    async def name_at_engine(self, asked: str) -> str:
        """What the engine calls what a caller named, "" for its model. Raises Refused and RequestFailed."""
        if not self.names or asked in ("", *self.names):
            return "" if self.names else asked
        await self.config_of(asked)
        return asked


def engine_names(config: pb.EngineConfig) -> Sequence[str]:
    """What an engine is called, its first name first."""
    return [config.served_model_name or config.model, *config.aliases]


class WrittenAnswer(Protocol):
    """An answer on its way: `events` for a stream, `add` and `whole` for one in one piece."""

    def add(self, batch: Sequence[Placed]) -> object:
        """Take outputs. Raises RequestFailed."""
        ...

    def events(self, batch: Sequence[Placed]) -> bytes:
        """Take outputs; the events they make. Raises RequestFailed."""
        ...

    def last_events(self) -> bytes:
        """What comes after the last output."""
        ...

    def whole(self) -> bytes:
        """Everything that was added."""
        ...

    def failed(self, refusal: Refusal) -> bytes:
        """The end of a stream that cannot go on."""
        ...


class AnswerRoute(PostRoute, Generic[Asked]):
    """The ASGI application of one way to ask. `id_prefix` begins the ids of its answers."""

    id_prefix: str

    def __init__(self, served: ServedBackend) -> None:
        self._served = served

    def headers(self) -> Mapping[str, str]:
        """Where its caller stands."""
        return rate_limit_headers(self._served.backend.backend.meters)

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's."""
        return self._served.backend.backend.vocabulary

    @property
    def formats(self) -> ModelFormats:
        """How the model's answers are read."""
        return self._served.formats

    @abstractmethod
    def read(self, body: Body) -> Asked:
        """Raises InvalidBody."""

    @abstractmethod
    def begun(self, asked: Asked, head: Head, streams: PromptStreams) -> WrittenAnswer:
        """How the answer is written; `streams` know what prompts have become, once they have an output."""

    async def answer(self, body: Body, reply: Reply, trace: Mapping[str, str]) -> None:
        """Raises InvalidBody, Refused and RequestFailed."""
        asked = self.read(body)
        name = asked.model
        at_engine = await self._served.name_at_engine(name)
        for prompt in asked.prompts:
            prompt.request.model = at_engine
        fit = await carry_out(asked.tokenizer_fields, asked.prompts, self._served.backend)
        answer_id = f"{self.id_prefix}-{asked.request_id or uuid.uuid4().hex}"
        streams = PromptStreams(self._served.backend, asked, fit, self._served.timeout, answer_id, trace)
        self._served.live.add(streams)
        try:
            async with streams:
                # Until the first output a refusal still gets a status code of its own.
                batch = await streams.read()
                head = Head(answer_id, int(time.time()), await self._served.name_in_answer(name))
                answer = self.begun(asked, head, streams)
                if asked.is_stream:
                    await reply.begin_events(answer_id, answer.failed)
                    await _stream(answer, batch, streams, reply)
                else:
                    await reply.whole(await _whole(answer, batch, streams), answer_id)
        finally:
            self._served.live.discard(streams)


class GenerateRoute(AnswerRoute[GenerationRequest]):
    """The ASGI application of one endpoint."""

    def __init__(self, endpoint: Endpoint, served: ServedBackend) -> None:
        super().__init__(served)
        self.id_prefix = endpoint.id_prefix
        self._endpoint = endpoint

    def read(self, body: Body) -> GenerationRequest:
        """Raises InvalidBody."""
        return self._endpoint.read(body)

    def begun(self, asked: GenerationRequest, head: Head, streams: PromptStreams) -> Answer:
        """See AnswerRoute."""
        return Answer(self._endpoint, asked, head, self.vocabulary, streams.prompt_ids, streams.prompt_texts)


async def _stream(answer: WrittenAnswer, batch: list[Placed], streams: PromptStreams, reply: Reply) -> None:
    take = None if reply.direct is None else partial(_take, answer, reply.direct)
    while batch:
        if events := answer.events(batch):
            await reply.events(events)
        batch = await streams.read(take)
    await reply.last_events(answer.last_events())


def _take(answer: WrittenAnswer, body: DirectBody, output: BackendOutput) -> bool:
    if not body.can_take:
        return False
    body.write(answer.events(((0, output),)))
    return True


async def _whole(answer: WrittenAnswer, batch: list[Placed], streams: PromptStreams) -> bytes:
    while batch:
        answer.add(batch)
        batch = await streams.read()
    return answer.whole()
