"""POST /v1/responses: body in, one message out, as a stream of typed events or in one piece."""

from __future__ import annotations

from enginewire.backend.frontends.http_api.body import Body
from enginewire.backend.frontends.http_api.openai.answer import Head
from enginewire.backend.frontends.http_api.openai.generate_route import AnswerRoute
from enginewire.backend.frontends.http_api.openai.prompts.streams import PromptStreams
from enginewire.backend.frontends.http_api.responses.answer import ResponseAnswer
from enginewire.backend.frontends.http_api.responses.fields import ResponseRequest, read_request


class ResponsesRoute(AnswerRoute[ResponseRequest]):
    """The ASGI application."""

    id_prefix = "resp"

    def read(self, body: Body) -> ResponseRequest:
        """Raises InvalidBody."""
        return read_request(body, self.formats)

    def begun(self, asked: ResponseRequest, head: Head, streams: PromptStreams) -> ResponseAnswer:
        """See AnswerRoute."""
        return ResponseAnswer(asked, head, self.vocabulary, streams.prompt_texts.get(0, ""))
