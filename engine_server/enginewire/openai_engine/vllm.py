"""`vllm serve`: what it says of itself, and a choice as one of its requests.

vLLM is told the ids that end a choice, so that it need not go on; here they are judged all the same.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from enginewire import v1 as pb
from enginewire.openai_engine.connection import Connection, Json
from enginewire.openai_engine.drawn import Drawn, Row
from enginewire.openai_engine.failure import Refused
from enginewire.openai_engine.model import Model
from enginewire.openai_engine.seeds import seed_of
from enginewire.server.engines.answer import ending_ids, room_for, with_defaults
from enginewire.server.engines.remote.watch import Lost, NoUpstream
from enginewire.server.failures import EngineMistake, Unsupported

PATH: Final = "/v1/completions"
HEALTH: Final = "/health"
ENGINE_DEAD: Final = 503
"""What it says there once its engine has died, which it never gets back."""
MOST_TEMPERATURE: Final = 2.0
PREFIX: Final = "token_id:"
"""Of what stands for a token among log-probabilities."""


class Vllm:
    """One `vllm serve`, or whatever is like it."""

    kind = "vllm"

    def __init__(self, connection: Connection, version: str, config: pb.EngineConfig) -> None:
        self.version = version
        self.config = config
        self._connection = connection

    @classmethod
    async def of(cls, connection: Connection, models: Json, model: Model | None, max_num_seqs: int) -> Vllm:
        """Take the facts. Raises NoUpstream."""
        if model is None:
            raise NoUpstream(
                "vLLM does not say how large its vocabulary is; name the model's folder too: --model FOLDER"
            )
        served = models["data"][0]
        version = str((await connection.get("/version")).get("version", ""))
        config = pb.EngineConfig(
            model=served["id"],
            context_length=served["max_model_len"],
            max_num_seqs=max_num_seqs,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            role=pb.ENGINE_ROLE_AGGREGATED,
        )
        config.limits.max_n = max_num_seqs
        config.capabilities.CopyFrom(
            pb.Capabilities(
                seed=True,
                multiple_choices=True,
                min_p=True,
                penalties=True,
                logit_bias=True,
                allowed_token_ids=True,
                logprobs=True,
                default_sampling=model.default_sampling,
            )
        )
        server = cls(connection, version, config)
        await server._try()
        return server

    async def identity(self, seconds: float | None) -> object:
        """The models by their names, and how much they take. Raises Lost for a server without its engine."""
        try:
            await self._connection.reach(HEALTH, seconds)
        except Refused as error:
            # Another status is that of a proxy, which may not have the page.
            if error.status == ENGINE_DEAD:
                raise Lost(str(error)) from error
        models = await self._connection.get("/v1/models", seconds)
        return [(each.get("id"), each.get("root"), each.get("max_model_len")) for each in models["data"]]

    def check(self, request: pb.PreprocessedRequest) -> None:
        """Raise Unsupported for a temperature that vLLM does not take."""
        if request.sampling_options.temperature > MOST_TEMPERATURE:
            field = "sampling_options.temperature"
            raise Unsupported(f"{field}: vLLM takes at most {MOST_TEMPERATURE:g} here", field=field)

    async def tokens(
        self, request: pb.PreprocessedRequest, index: int, generated: list[int]
    ) -> AsyncGenerator[Drawn, None]:
        """The tokens of one request of vLLM's."""
        body = self._body(request, index, generated)
        async with aclosing(self._connection.events(PATH, body)) as events:
            async for event in events:
                for choice in event.get("choices") or ():
                    for drawn in _drawn(choice):
                        yield drawn

    async def _try(self) -> None:
        """Raise NoUpstream for a server that does not tell the ids of its tokens."""
        probe = pb.PreprocessedRequest(token_ids=[self.config.vocab_size // 2], is_probe=True)
        try:
            async for _ in self.tokens(probe, 0, []):
                return
        except EngineMistake as error:
            raise NoUpstream(f"{error}; vLLM does since 0.11") from error
        raise NoUpstream("no token came of a request for one")

    def _body(self, request: pb.PreprocessedRequest, index: int, generated: list[int]) -> Json:
        options = with_defaults(request.sampling_options, self.config.capabilities.default_sampling)
        body: dict[str, Any] = {
            "model": self.config.model,
            "prompt": [*request.token_ids, *generated],
            "max_tokens": room_for(request, self.config) - len(generated),
            "stream": True,
            "return_token_ids": True,
            "ignore_eos": True,
            "stop_token_ids": self._endings(request),
            "temperature": options.temperature,
            "top_p": options.top_p,
            "top_k": max(options.top_k, 0),
            "min_p": options.min_p,
            "repetition_penalty": options.repetition_penalty,
            "presence_penalty": options.presence_penalty,
            "frequency_penalty": options.frequency_penalty,
            "seed": seed_of(options, index),
            "logit_bias": {str(each.token_id): each.bias for each in options.logit_bias} or None,
            "allowed_token_ids": list(dict.fromkeys(options.allowed_token_ids)) or None,
        }
        if request.output_options.HasField("logprobs"):
            body |= {"logprobs": request.output_options.logprobs, "return_tokens_as_token_ids": True}
        if request.bypass_prefix_cache or request.is_probe:
            body["cache_salt"] = secrets.token_hex(16)  # which nobody else has
        elif request.cache_salt:
            body["cache_salt"] = _salt(request.cache_salt)
        return body

    def _endings(self, request: pb.PreprocessedRequest) -> list[int]:
        """Below min_tokens vLLM would bar them, and choose at random where nothing else is left."""
        if request.stop_conditions.min_tokens > 1:
            return []
        return sorted(frozenset().union(*ending_ids(request, self.config)))


def _salt(given: str) -> str:
    """Equal for equal ones only; of the given ones vLLM refuses long ones, and some characters."""
    return hashlib.blake2b(given.encode(), digest_size=32).hexdigest()


def _drawn(choice: Mapping[str, Any]) -> list[Drawn]:
    ids = choice.get("token_ids")
    if ids is None:
        raise EngineMistake("the server does not tell the ids of its tokens")
    logprobs = choice.get("logprobs")
    if logprobs is None:
        return [Drawn(token_id) for token_id in ids]
    rows = zip(ids, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return [Drawn(token_id, Row(value, _alternatives(top))) for token_id, value, top in rows]


def _alternatives(top: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    return tuple((int(name.removeprefix(PREFIX)), value) for name, value in (top or {}).items())
