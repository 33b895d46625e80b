"""`OpenAIEngine`: a completions server of others as the shell sees it.

`Completions` calls it once for each choice; the shell's driver runs that. The server counts neither stops nor
limits: each token is judged here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.openai_engine.call import CompletionsCall
from enginewire.openai_engine.connection import Connection
from enginewire.openai_engine.drawn import Drawn
from enginewire.openai_engine.failure import SERVER_ERRORS, Refused, failure_of
from enginewire.openai_engine.finding import found
from enginewire.openai_engine.model import Model
from enginewire.openai_engine.options import OpenAIEngineOptions
from enginewire.openai_engine.server import CompletionsServer
from enginewire.server.engines.answer import Answer
from enginewire.server.engines.interface import GenerateContext, Item, Tokenizer
from enginewire.server.engines.remote.engine import RemoteDriver, RemoteEngine, dead
from enginewire.server.engines.remote.watch import Lost, Replaced
from enginewire.server.failures import EngineDead

log = logging.getLogger(__name__)


class Completions(RemoteEngine[CompletionsCall]):
    """The server behind the connection, one call for each choice."""

    def __init__(self, options: OpenAIEngineOptions) -> None:
        super().__init__(options)
        self._openai = options
        self._connection: Connection | None = None
        self._server: CompletionsServer | None = None
        self._model: Model | None = None
        self._identity: object = None

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Wait for the server, and take its facts. Raises NoUpstream."""
        self._model = Model.of(self._openai.folder)
        self._connection = Connection(self._openai)
        self._server = server = await found(self._connection, self._openai, self._model)
        self._identity = await server.identity(None)
        self.config.CopyFrom(server.config)
        if self._model is not None:
            # As every engine names it that loads this folder: only so another one can go on with an answer.
            self.config.model = self._openai.folder
        self.config.capabilities.tokenizer = self.tokenizer() is not None
        self.engine_name, self.engine_version = server.kind, server.version
        self.watch_over(self._look)
        return self.config

    def check(self, request: pb.PreprocessedRequest) -> None:
        """Raise Unsupported for a valid request that the server cannot serve truly."""
        if self._server is not None:
            self._server.check(request)

    async def generate(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[Item]:
        """A token at a time, once there is a slot for every choice."""
        async with self.turn(request, context, lambda: self._begin(request)) as call:
            answer, sums = Answer(request, context, self.config), _sums(request)
            try:
                while not answer.is_finished:
                    item = await call.next()
                    if item is None:
                        for index in answer.open_choices:
                            yield answer.finish(pb.FINISH_REASON_CANCELLED, index)
                        return
                    yield self._output(answer, sums, request, call, *item)
            except Lost as error:
                log.warning("request %s: %s", context.request_id, error)
                await self.looked()
                raise EngineDead("the engine went away") from error
            except Refused as error:
                if error.status in SERVER_ERRORS:  # which also come of a server that is about to end
                    await self.looked()
                else:
                    self.look()
                if self.is_dead:
                    raise dead() from error
                raise failure_of(error, context.request_id) from error
            finally:
                await call.leave()

    async def abort(self, context: GenerateContext) -> None:
        """End the call, which closes its connections."""
        if call := self._calls.get(context):
            call.cancel()

    async def disconnect(self) -> None:
        """End every call."""
        if self._connection is not None:
            await self._connection.close()

    def tokenizer(self) -> Tokenizer | None:
        """The files of the model's folder, where it was named."""
        return self._model.tokenizer if self._model else None

    def _begin(self, request: pb.PreprocessedRequest) -> CompletionsCall:
        assert self._server is not None, "requests come after the start"
        resumed = {choice.index: choice for choice in request.resume.choices}
        return CompletionsCall(
            {
                index: self._server.tokens(request, index, list(resumed[index].generated_token_ids))
                if index in resumed
                else self._server.tokens(request, index, [])
                for index in range(max(1, request.sampling_options.n))
                if index not in resumed or not resumed[index].finished
            }
        )

    def _output(
        self,
        answer: Answer,
        sums: dict[int, float],
        request: pb.PreprocessedRequest,
        call: CompletionsCall,
        index: int,
        drawn: Drawn,
    ) -> pb.LLMEngineOutput:
        output = answer.token(drawn.token_id, index)
        if drawn.row is not None and output.token_ids:
            sums[index] = sums.get(index, 0.0) + drawn.row.logprob
            output.logprobs.CopyFrom(drawn.row.message(request.output_options.logprobs))
            output.cum_log_probs = sums[index]
        if output.finish_reason:
            call.finish(index)
        return output

    async def _look(self, seconds: float | None) -> None:
        assert self._server is not None, "looked at after the start"
        try:
            if await self._server.identity(seconds) != self._identity:
                raise Replaced
        except Refused as error:
            log.warning("the server behind answers with %s", error)


class OpenAIEngine(RemoteDriver):
    """`Completions` as the server drives it."""

    def __init__(self, options: OpenAIEngineOptions) -> None:
        self._completions = Completions(options)
        super().__init__(self._completions)

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Refuse what the server cannot serve truly."""
        self._completions.check(request)
        super().submit(request, context)


def _sums(request: pb.PreprocessedRequest) -> dict[int, float]:
    """The log-probabilities that choices have gathered already."""
    return {choice.index: choice.cum_log_probs for choice in request.resume.choices}
