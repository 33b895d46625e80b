"""A `llama-server`: a choice is a row of short requests, passes, each of which goes on behind the last.

The server ends an answer at its model's own end of sequence and cannot be told otherwise; the next pass then
goes on. A seeded choice has a seed for each of its tokens, and so a pass for each: then a choice that is
resumed draws the random numbers that it would have drawn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from enginewire import v1 as pb
from enginewire.openai_engine.connection import Connection, Json
from enginewire.openai_engine.drawn import Drawn
from enginewire.openai_engine.llama_cpp.facts import PROPS, config_of, identity_of
from enginewire.openai_engine.llama_cpp.passes import Passes
from enginewire.openai_engine.llama_cpp.requests import LONG, body_of, drawn_seed, is_alone, is_seeded
from enginewire.openai_engine.model import Model
from enginewire.server.engines.answer import room_for, with_defaults
from enginewire.server.failures import EngineMistake


class LlamaCpp:
    """One `llama-server`, or whatever is like it."""

    kind = "llama.cpp"

    def __init__(self, connection: Connection, version: str, config: pb.EngineConfig, passes: Passes) -> None:
        self.version = version
        self.config = config
        self._connection = connection
        self._passes = passes
        self._finds_prompts = True

    @classmethod
    async def of(cls, connection: Connection, models: Json, model: Model | None) -> LlamaCpp:
        """Take the facts. Raises NoUpstream."""
        props = await connection.get(PROPS)
        config = await config_of(connection, models, props, model)
        passes = await Passes.of(connection, config.vocab_size)
        return cls(connection, str(props.get("build_info", "")), config, passes)

    async def identity(self, seconds: float | None) -> object:
        """What changes with another model."""
        return await identity_of(self._connection, seconds)

    def check(self, request: pb.PreprocessedRequest) -> None:
        """Everything can be served."""

    async def tokens(
        self, request: pb.PreprocessedRequest, index: int, generated: list[int]
    ) -> AsyncGenerator[Drawn, None]:
        """Pass after pass, until there is no room."""
        if request.cache_salt:
            # The server has one cache for all, so from now on nobody finds the prompts of others.
            self._finds_prompts = False
        options = with_defaults(request.sampling_options, self.config.capabilities.default_sampling)
        known, length = [*request.token_ids, *generated], 1 if is_seeded(options) else LONG
        end = len(request.token_ids) + room_for(request, self.config)
        while room := end - len(known):
            before = len(known)
            seed = drawn_seed(options, index, before - len(request.token_ids))
            body = body_of(request, options, known, seed, min(length, room))
            if before == len(request.token_ids):
                body["cache_prompt"] = self._finds_prompts and not is_alone(request)
            async with aclosing(self._passes.run(body)) as drawn:
                async for each in drawn:
                    known.append(each.token_id)
                    yield each
            if len(known) == before:
                raise EngineMistake("the server ends a request without a token")
