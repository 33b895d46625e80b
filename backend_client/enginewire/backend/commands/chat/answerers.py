"""Who answers: a backend in this process, or a running one over gRPC.

Knows nothing about conversations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import grpc

from enginewire import v1 as pb
from enginewire.backend.commands.chat.options import ChatOptions
from enginewire.backend.decoding.annotated import Annotated, BackendOutput, annotated_from_proto
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.prompts import InvalidPrompt
from enginewire.calling.channel import open_channel
from enginewire.calling.trust import trust_of
from enginewire.files.trusted_paths import UntrustedPath

Items = AsyncGenerator[Annotated[BackendOutput], None]


class NoAnswer(Exception):
    """There is none, or no more of it; the message is one line."""


class Answerer(Protocol):
    """Closing the iterator aborts the request."""

    def ask(self, asked: pb.BackendServiceGenerateRequest, *, with_tokens: bool) -> Items:
        """The outputs of one answer; `with_tokens` gives each token as text too. Raises NoAnswer."""
        ...


class OwnBackend:
    """A backend in this process."""

    def __init__(self, backend: TextBackend, timeout: float | None) -> None:
        self._backend = backend
        self._timeout = timeout

    async def ask(self, asked: pb.BackendServiceGenerateRequest, *, with_tokens: bool) -> Items:
        """See Answerer."""
        items = self._backend.generate(asked, timeout=self._timeout, with_tokens=with_tokens)
        try:
            async with aclosing(items):
                async for item in items:
                    yield item
        except (InvalidPrompt, RequestFailed) as error:
            raise NoAnswer(" ".join(str(error).split())) from error


class RunningBackend:
    """A backend in another process."""

    def __init__(self, channel: grpc.aio.Channel, timeout: float | None) -> None:
        self._stub: pb.BackendServiceAsyncStub = pb.BackendServiceStub(channel)
        self._timeout = timeout

    async def ask(self, asked: pb.BackendServiceGenerateRequest, *, with_tokens: bool) -> Items:
        """See Answerer. The texts of tokens travel beside their log-probabilities."""
        if with_tokens:
            asked.request.output_options.logprobs = 0
        call = self._stub.Generate(asked, timeout=self._timeout)
        try:
            async for response in call:
                yield annotated_from_proto(response.annotated)
        except grpc.aio.AioRpcError as error:
            details = " ".join((error.details() or "").split())
            raise NoAnswer(f"{error.code().name}: {details}") from error
        finally:
            call.cancel()


@asynccontextmanager
async def running_backend(options: ChatOptions) -> AsyncGenerator[RunningBackend]:
    """A connection to the backend that the options name. Raises NoAnswer when there is none in time."""
    trust = trust_of(options)
    try:
        trust.check(options.backend)
    except UntrustedPath as error:
        raise NoAnswer(f"{options.backend}: {error}; --socket-owner names another user") from error
    async with open_channel(options.backend, trust=trust) as channel:
        try:
            async with asyncio.timeout(options.connect_timeout):
                await channel.channel_ready()
        except TimeoutError as error:
            raise NoAnswer(
                f"{options.backend}: nobody answers within {options.connect_timeout:g} s"
            ) from error
        yield RunningBackend(channel, options.timeout)
