"""The RPCs of AdminService: adapters come and go, the prefix cache is dropped."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.server.admission.adapters import AdapterTable
from enginewire.server.engines.interface import AdapterEngine, PrefixCacheEngine
from enginewire.server.failures import AdapterExists, Unsupported
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.services.handlers import Call
from enginewire.server.validation.fields import invalid
from enginewire.server.validation.generate import NAME, NAME_RULE, served_names


class AdminServicer:
    """Serves AdminService for one engine."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, call: Call) -> pb.LoadAdapterResponse:
        """Load an adapter from a folder of the operator's."""
        engine, table = self._adapters()
        if not NAME.fullmatch(request.name):
            raise invalid("name", "not a valid name", request.name, NAME_RULE)
        if request.name in served_names(self._lifecycle.engine_config()):
            raise AdapterExists("name: the model itself has that name", field="name")
        return pb.LoadAdapterResponse(adapter=await table.load(engine, request.name, request.source))

    async def UnloadAdapter(self, request: pb.UnloadAdapterRequest, call: Call) -> pb.UnloadAdapterResponse:
        """Forget an adapter that no request uses."""
        engine, table = self._adapters()
        await table.unload(engine, request.name, self._lifecycle.requests.uses_adapter)
        return pb.UnloadAdapterResponse()

    async def ListAdapters(self, request: pb.ListAdaptersRequest, call: Call) -> pb.ListAdaptersResponse:
        """The adapters that are loaded."""
        _, table = self._adapters()
        return pb.ListAdaptersResponse(adapters=table.adapters())

    async def ResetPrefixCache(
        self, request: pb.ResetPrefixCacheRequest, call: Call
    ) -> pb.ResetPrefixCacheResponse:
        """Drop the cached blocks that no request holds."""
        config, engine = self._lifecycle.engine_config(), self._lifecycle.engine
        if not config.capabilities.prefix_cache or not isinstance(engine, PrefixCacheEngine):
            raise Unsupported("this engine has no prefix_cache that could be reset")
        return pb.ResetPrefixCacheResponse(blocks_freed=await engine.reset_prefix_cache())

    def _adapters(self) -> tuple[AdapterEngine, AdapterTable]:
        config, engine = self._lifecycle.engine_config(), self._lifecycle.engine
        table = self._lifecycle.requests.adapters
        if not config.capabilities.lora or not isinstance(engine, AdapterEngine) or table is None:
            raise Unsupported("this engine has no lora adapters")
        return engine, table
