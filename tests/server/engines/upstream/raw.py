"""The bare engine of examples/, in this process and on a socket, and one that misbehaves on request.

`RawServer` starts, ends and starts again what `enginewire engine --upstream` would be in front of.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from enginewire import v1 as pb
from enginewire.grpc_server import bare_server
from tests.repository import ROOT
from tests.server.serving import until_true

EXAMPLE = ROOT / "examples" / "bare-python" / "engine.py"


def example() -> Any:
    """The module, a fresh one each time: it has a life of its own."""
    spec = importlib.util.spec_from_file_location("bare_engine", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BareEngine = example().BareEngine

Change = Callable[[int, pb.GenerateResponse], "pb.GenerateResponse | None"]


class Odd(BareEngine):
    """The example, with facts of the test and answers that the test may change.

    `change` gets the number of a message and the message; None ends the call there. A request whose prompt
    begins with another token than `marked` is answered as it should be.
    """

    def __init__(self, life: str = "one", marked: int = 7) -> None:
        super().__init__()
        self.info = pb.GetEngineInfoResponse(config=example().CONFIG, engine_lifetime_id=life)
        self.load = pb.Load(state=pb.ENGINE_STATE_READY)
        self.change: Change | None = None
        self.status: tuple[grpc.StatusCode, str] | None = None
        self.hang_at: int | None = None
        self.is_deaf = False
        self.has_bug = False
        """Whether GetEngineInfo and Abort fail."""
        self.answers_info = asyncio.Event()
        self.answers_info.set()
        self.marked = marked
        self.seen: list[pb.GenerateRequest] = []
        self.aborted: list[str] = []
        self.cancelled: list[str] = []
        self.most = 0

    async def GetEngineInfo(self, request, call):
        await self.answers_info.wait()
        await self._fail_with_bug(call)
        return self.info

    async def GetLoad(self, request, call):
        return pb.GetLoadResponse(load=self.load)

    async def Abort(self, request, call):
        self.aborted += request.request_ids
        await self._fail_with_bug(call)
        if self.is_deaf:
            return pb.AbortResponse()
        return await super().Abort(request, call)

    async def _fail_with_bug(self, call):
        if self.has_bug:
            await call.abort(grpc.StatusCode.INTERNAL, "a bug")

    async def Generate(self, generate, call) -> AsyncIterator[pb.GenerateResponse]:
        self.seen.append(generate)
        is_marked, has_ended = generate.request.token_ids[0] == self.marked, False
        number = 0
        try:
            async for response in super().Generate(generate, call):
                self.most = max(self.most, len(self.live))
                if is_marked and self.hang_at == number:
                    await asyncio.Event().wait()
                if is_marked and self.status is not None:
                    await call.abort(*self.status)
                has_ended = bool(response.output.finish_reason)
                if is_marked and self.change is not None:
                    response = self.change(number, response)
                if response is None:
                    return
                yield response
                number += 1
        finally:
            if not has_ended:
                self.cancelled.append(generate.request_id)


class Ending(Odd):
    """Is asked who it is when it ends, and answers once it was started again."""

    is_over = True

    async def GetEngineInfo(self, request, call):
        if self.is_over:
            self.is_over = False
            await call.abort(grpc.StatusCode.CANCELLED, "as a server says that lets nobody finish")
        return await super().GetEngineInfo(request, call)


class RawServer:
    """A bare engine on a socket of a folder."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "raw.sock"
        self.target = f"unix:{self._socket}"
        self._server: grpc.aio.Server | None = None

    async def start(self, engine: object) -> None:
        """Listen."""
        self._server = bare_server()
        pb.add_EngineServiceServicer_to_server(engine, self._server)
        pb.add_DiscoveryServiceServicer_to_server(engine, self._server)
        self._server.add_insecure_port(self.target)
        await self._server.start()

    async def end(self) -> None:
        """Break all connections, as the end of a process would."""
        if self._server is not None:
            await self._server.stop(None)
            # It goes a moment later, and with it the socket of whoever listens there by then.
            await until_true(lambda: not self._socket.exists())
        self._server = None
