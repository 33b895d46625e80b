"""One request at the engine: the call, its outputs as they come, and what is missing in them.

What the engine may leave out is made here: the usage, from the tokens that came. What it may rely on is put
into the request: `max_tokens`, the ids that end it, the core of sampling. Knows nothing about other requests.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Literal, TypeAlias

import grpc

from enginewire import v1 as pb
from enginewire.server.engines.answer import room_for, usage
from enginewire.server.engines.interface import GenerateContext, Item
from enginewire.server.engines.step_streams import open_choices
from enginewire.server.engines.upstream.connection import Connection
from enginewire.server.failures import EngineError, EngineMistake
from enginewire.server.validation.payloads import prompt_length

ALWAYS_SAID: Final[tuple[Literal["temperature", "top_p", "top_k"], ...]] = ("temperature", "top_p", "top_k")
"""Options of sampling that are core: a request that leaves them out gets the engine's defaults."""

LAST_SECONDS: Final = 1.0
"""For the status behind the last terminal output. A call that is open longer is cancelled."""

GenerateCall: TypeAlias = "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]"


class UpstreamCall:
    """The Generate call of one request. `heard_at`: when something last came, on time.monotonic()."""

    def __init__(self, connection: Connection, request: pb.GenerateRequest, context: GenerateContext) -> None:
        """`request` is as `completed` made it."""
        self.name = request.request_id
        self.heard_at = time.monotonic()
        self.num_tokens = 0
        self._open = open_choices(request.request, pb.ENGINE_ROLE_AGGREGATED)
        self._num_prompt = prompt_length(request.request)
        self._num_resumed = sum(len(each.generated_token_ids) for each in request.request.resume.choices)
        self._failure: EngineError | None = None
        left = None if context.deadline is None else max(context.deadline - time.monotonic(), 0.0)
        trace = tuple(context.trace.items())
        self._call: GenerateCall = connection.engine.Generate(request, timeout=left, metadata=trace)

    async def next(self) -> Item | None:
        """The next output or event; None: the engine has ended the call, and says that all is well.

        Raises AioRpcError for any other end, EngineMistake, and the failure that `fail` was given.
        """
        try:
            response = await self._call.read()
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure from None
        self.heard_at = time.monotonic()
        if not isinstance(response, pb.GenerateResponse):
            return None
        if response.request_id != self.name:
            raise EngineMistake(f"request {self.name}: an answer has another request_id")
        if response.HasField("engine_event"):
            return response.engine_event
        return self._counted(response.output)

    def fail(self, failure: EngineError) -> None:
        """End the call here and now: whoever reads it gets `failure`."""
        self._failure = self._failure or failure
        self._call.cancel()

    def leave(self) -> None:
        """Nobody reads on. What is still being generated is cancelled."""
        if self._open > 0:
            self._call.cancel()
        else:
            asyncio.get_running_loop().call_later(LAST_SECONDS, self._call.cancel)

    def _counted(self, output: pb.LLMEngineOutput) -> pb.LLMEngineOutput:
        self.num_tokens += len(output.token_ids)
        if output.finish_reason:
            self._open -= 1
            if self._open == 0 and not output.HasField("completion_usage"):
                counted = usage(self._num_prompt, self._num_resumed + self.num_tokens)
                output.completion_usage.CopyFrom(counted)
        return output


def completed(
    request_id: str, request: pb.PreprocessedRequest, config: pb.EngineConfig
) -> pb.GenerateRequest:
    """For the engine: under this id, with a `max_tokens` that fits, and defaults where it says nothing."""
    generate = pb.GenerateRequest(request_id=request_id, request=request)
    generate.request.stop_conditions.max_tokens = room_for(request, config)
    if not request.eos_token_ids:
        generate.request.eos_token_ids.extend(config.eos_token_ids)
    sampling, default = generate.request.sampling_options, config.capabilities.default_sampling
    for name in ALWAYS_SAID:
        if not sampling.HasField(name):
            setattr(sampling, name, getattr(default, name))
    return generate
