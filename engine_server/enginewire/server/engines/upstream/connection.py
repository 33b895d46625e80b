"""The way to an engine in another process: dial it, wait until it is there, ask who it is.

A socket must be this user's or root's, like all that our programs meet at. Knows nothing about requests.
"""

from __future__ import annotations

import logging
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.calling.channel import open_channel
from enginewire.calling.trust import THIS_USER
from enginewire.files.trusted_paths import UntrustedPath
from enginewire.server.engines.remote.arrival import NotYet, first_answer
from enginewire.server.engines.remote.options import RemoteOptions
from enginewire.server.engines.remote.watch import NoUpstream
from enginewire.server.engines.upstream.failure import shown

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
STILL_COMING: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)
"""An engine that is not there yet, still loads its model, or ends just now and may be started again."""


class Connection:
    """One channel to the engine, and the stubs of the RPCs that a bare engine has."""

    def __init__(self, options: RemoteOptions) -> None:
        self.target = options.target
        self._patience = options.start_timeout
        self._channel = open_channel(options.target)
        self.engine = pb.EngineServiceStub(self._channel)
        self.discovery = pb.DiscoveryServiceStub(self._channel)

    async def found(self) -> pb.GetEngineInfoResponse:
        """Who answers there, as soon as somebody does. Raises NoUpstream."""
        try:
            return await first_answer(
                self._asked, whose="engine", target=self.target, patience=self._patience
            )
        except (UntrustedPath, NoUpstream) as error:
            raise NoUpstream(f"--upstream {self.target}: {error}") from error
        except grpc.aio.AioRpcError as error:
            what = "is no bare engine: GetEngineInfo ended with"
            raise NoUpstream(f"--upstream {self.target} {what} {shown(error)}") from error

    async def _asked(self) -> pb.GetEngineInfoResponse:
        """Who answers. Raises NotYet, UntrustedPath, and AioRpcError that more patience would not change."""
        THIS_USER.check(self.target)
        try:
            return await self.info(min(ANSWER_SECONDS, self._patience))
        except grpc.aio.AioRpcError as error:
            if error.code() not in STILL_COMING:
                raise
            raise NotYet(shown(error)) from error

    async def info(self, seconds: float | None = None) -> pb.GetEngineInfoResponse:
        """GetEngineInfo. Raises AioRpcError."""
        answer: pb.GetEngineInfoResponse = await self.discovery.GetEngineInfo(
            pb.GetEngineInfoRequest(), timeout=seconds
        )
        return answer

    async def load(self, seconds: float | None = None) -> pb.Load:
        """GetLoad. Raises AioRpcError."""
        answer: pb.GetLoadResponse = await self.discovery.GetLoad(pb.GetLoadRequest(), timeout=seconds)
        return answer.load

    async def abort(self, request_id: str, seconds: float) -> None:
        """Abort, as far as it gets there in that time: whoever needs to be sure cancels the call as well."""
        request = pb.AbortRequest(request_ids=[request_id], reason="aborted")
        try:
            await self.engine.Abort(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            log.debug("Abort of %s: %s", request_id, shown(error))

    async def close(self) -> None:
        """End every call."""
        await self._channel.close()
