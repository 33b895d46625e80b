"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them: adapters of all engines at once.

An operator's business: refused unless the server was started with the option for it. Knows nothing about
what adapters are.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import grpc

from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.calls.post_route import PostRoute
from enginewire.backend.frontends.http_api.calls.reply import Reply
from enginewire.backend.frontends.http_api.openai.generate_route import ServedBackend
from enginewire.backend.frontends.http_api.refusal import Refusal, Refused, refusal_of

# Reading a large adapter from a slow disk is a matter of minutes.
TIMEOUT_SECONDS: Final = 600.0
PARAMS: Final = {"name": "lora_name", "source": "lora_path"}


class AdapterRoute(PostRoute):
    """What the two have in common. An engine that failed can be asked again: what is done stays done."""

    def __init__(self, served: ServedBackend) -> None:
        self._served = served

    async def answer(self, body: Body, reply: Reply, trace: Mapping[str, str]) -> None:
        """Raises InvalidBody, Refused and RequestFailed."""
        if not self._served.allows_adapters:
            message = "adapters are the operator's; see --allow-runtime-lora-updating"
            raise Refused(Refusal(HTTPStatus.FORBIDDEN, message, code="forbidden"))
        name = checked("lora_name", body.get("lora_name"), str)
        clients = self._served.backend.backend.clients
        try:
            done = await self.carry_out(clients, name, body)
        except RequestFailed as error:
            raise Refused(refusal_of(error.failure, PARAMS.get)) from error
        await reply.text(f"Success: LoRA adapter '{name}' {done} successfully.")

    @abstractmethod
    async def carry_out(self, clients: Sequence[EngineClient], name: str, body: Body) -> str:
        """Ask every engine; what was done, as a word. Raises InvalidBody and RequestFailed."""


class LoadAdapterRoute(AdapterRoute):
    """The ASGI application of /v1/load_lora_adapter."""

    async def carry_out(self, clients: Sequence[EngineClient], name: str, body: Body) -> str:
        """See AdapterRoute."""
        source = checked("lora_path", body.get("lora_path"), str)
        if body.flag("load_inplace"):
            raise InvalidBody("load_inplace", "not supported; unload the adapter first")
        await self._served.config_of(body.text("base_model_name"), "base_model_name")
        ends = (client.load_adapter(name, source, TIMEOUT_SECONDS) for client in clients)
        for failure in await _failures(ends):
            raise failure
        return "added"


class UnloadAdapterRoute(AdapterRoute):
    """The ASGI application of /v1/unload_lora_adapter."""

    async def carry_out(self, clients: Sequence[EngineClient], name: str, body: Body) -> str:
        """See AdapterRoute."""
        if body.get("lora_int_id") is not None:
            raise InvalidBody("lora_int_id", "not supported; adapters have names only")
        failures = await _failures(client.unload_adapter(name, TIMEOUT_SECONDS) for client in clients)
        others = [failure for failure in failures if failure.code is not grpc.StatusCode.NOT_FOUND]
        # Gone from some is gone from all, once an earlier attempt was successful at the others.
        if others or len(failures) == len(clients):
            raise (others or failures)[0]
        return "removed"


async def _failures(calls: Iterable[Awaitable[None]]) -> list[RequestFailed]:
    ends = await asyncio.gather(*calls, return_exceptions=True)
    for end in ends:
        if end is not None and not isinstance(end, RequestFailed):
            raise end
    return [end for end in ends if isinstance(end, RequestFailed)]
