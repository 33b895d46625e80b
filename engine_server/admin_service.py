"""The RPCs of AdminService. No engine here has adapters yet: those RPCs say so."""

from __future__ import annotations

from typing import NoReturn

from engine_server.failures import Unsupported
from engine_server.interface import PrefixCacheEngine
from engine_server.lifecycle import Lifecycle
from engine_server.rpc import Call
from enginewire import v1 as pb


class AdminServicer:
    """Serves AdminService for one engine."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, call: Call) -> pb.LoadAdapterResponse:
        """Refused: needs the capability lora."""
        self._refuse_adapters()

    async def UnloadAdapter(self, request: pb.UnloadAdapterRequest, call: Call) -> pb.UnloadAdapterResponse:
        """Refused: needs the capability lora."""
        self._refuse_adapters()

    async def ListAdapters(self, request: pb.ListAdaptersRequest, call: Call) -> pb.ListAdaptersResponse:
        """Refused: needs the capability lora."""
        self._refuse_adapters()

    async def ResetPrefixCache(
        self, request: pb.ResetPrefixCacheRequest, call: Call
    ) -> pb.ResetPrefixCacheResponse:
        """Drop the cached blocks that no request holds."""
        config, engine = self._lifecycle.engine_config(), self._lifecycle.engine
        if not config.capabilities.prefix_cache or not isinstance(engine, PrefixCacheEngine):
            raise Unsupported("this engine has no prefix_cache that could be reset")
        return pb.ResetPrefixCacheResponse(blocks_freed=await engine.reset_prefix_cache())

    def _refuse_adapters(self) -> NoReturn:
        self._lifecycle.engine_config()
        raise Unsupported("this engine has no lora adapters")
