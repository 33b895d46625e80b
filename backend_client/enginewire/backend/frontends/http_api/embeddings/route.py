"""The route of embeddings: body in, vectors out, in one piece."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from enginewire import v1 as pb
from enginewire.backend.embedding import Embeddings
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.http_api.body import Body
from enginewire.backend.frontends.http_api.calls.post_route import PostRoute
from enginewire.backend.frontends.http_api.calls.rate_limits import rate_limit_headers
from enginewire.backend.frontends.http_api.calls.reply import Reply
from enginewire.backend.frontends.http_api.embeddings.fields import AskedVectors, answer_of, read_asked
from enginewire.backend.frontends.http_api.openai.generate_route import ServedBackend
from enginewire.backend.frontends.http_api.refusal import Refusal, Refused, invalid, refusal_of
from enginewire.backend.prompting.prompts import InvalidPrompt


class EmbeddingsRoute(PostRoute):
    """The ASGI application."""

    def __init__(self, served: ServedBackend) -> None:
        self._served = served

    def headers(self) -> Mapping[str, str]:
        """Where its caller stands."""
        return rate_limit_headers(self._served.backend.backend.meters)

    async def answer(self, body: Body, reply: Reply, trace: Mapping[str, str]) -> None:
        """Raises InvalidBody, Refused and RequestFailed."""
        asked = read_asked(body)
        name = asked.model
        asked = replace(asked, model=await self._served.name_at_engine(name))
        answer_id = f"embd-{uuid.uuid4().hex}"
        work = VectorWork(self._served, asked, answer_id, trace)
        self._served.live.add(work)
        try:
            embeddings = await work.result()
        finally:
            self._served.live.discard(work)
            await work.close()
        model = await self._served.name_in_answer(name)
        await reply.whole(answer_of(embeddings, model, is_base64=asked.is_base64), answer_id)


class VectorWork:
    """One request on its way through the backend."""

    def __init__(
        self, served: ServedBackend, asked: AskedVectors, answer_id: str, trace: Mapping[str, str]
    ) -> None:
        self._refused: asyncio.Future[Refusal] = asyncio.get_running_loop().create_future()
        self._work = asyncio.create_task(
            served.backend.embed(
                asked.inputs,
                pb.PreprocessedEmbeddingRequest(model=asked.model, dimensions=asked.dimensions),
                path="input",
                request_id=answer_id,
                timeout=served.timeout,
                metadata=trace,
            ),
            name=answer_id,
        )

    async def result(self) -> Embeddings:
        """The vectors. Raises Refused; call `close` afterwards."""
        ends: set[asyncio.Future[Any]] = {self._work, self._refused}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._refused.done():
            raise Refused(self._refused.result())
        try:
            return self._work.result()
        except InvalidPrompt as error:
            raise Refused(invalid(str(error), error.field)) from error
        except RequestFailed as error:
            raise Refused(refusal_of(error.failure, str)) from error

    async def close(self) -> None:
        """End what still runs."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    def refuse(self, refusal: Refusal) -> None:
        """End it from outside."""
        if not self._refused.done():
            self._refused.set_result(refusal)
