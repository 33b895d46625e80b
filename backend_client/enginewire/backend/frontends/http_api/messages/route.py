"""POST /v1/messages and /v1/messages/count_tokens: body in, one message or the length of its prompt out."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from enginewire.backend.frontends.http_api.body import Body
from enginewire.backend.frontends.http_api.calls.post_route import PostRoute
from enginewire.backend.frontends.http_api.calls.reply import Reply
from enginewire.backend.frontends.http_api.messages.answer import MessageAnswer
from enginewire.backend.frontends.http_api.messages.fields import read_prompt, read_request
from enginewire.backend.frontends.http_api.openai.answer import Head
from enginewire.backend.frontends.http_api.openai.generate_route import AnswerRoute, ServedBackend
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.prompts.streams import PromptStreams
from enginewire.backend.frontends.http_api.refusal import Refused, invalid_prompt
from enginewire.backend.prompting.prompts import InvalidPrompt


class MessagesRoute(AnswerRoute[GenerationRequest]):
    """The ASGI application."""

    id_prefix = "msg"

    def read(self, body: Body) -> GenerationRequest:
        """Raises InvalidBody."""
        return read_request(body, self.formats)

    def begun(self, asked: GenerationRequest, head: Head, streams: PromptStreams) -> MessageAnswer:
        """See AnswerRoute."""
        return MessageAnswer(asked, head, streams)


class CountTokensRoute(PostRoute):
    """The ASGI application of the other one."""

    def __init__(self, served: ServedBackend) -> None:
        self._served = served

    async def answer(self, body: Body, reply: Reply, trace: Mapping[str, str]) -> None:
        """Raises InvalidBody, Refused and RequestFailed."""
        asked = read_prompt(body, self._served.formats)
        await self._served.config_of(asked.model)
        try:
            _, prompt = await self._served.backend.preprocess(asked.prompts[0], asked.conversation)
        except InvalidPrompt as error:
            raise Refused(invalid_prompt(error, asked.param_of)) from error
        await reply.whole(orjson.dumps({"input_tokens": len(prompt.token_ids)}))
