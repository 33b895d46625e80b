"""Adapters of the reference: names for other logits. The model itself mixes the name into its hash."""

from __future__ import annotations

from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.service import Answer, Service

SOURCES: Final = ("alpha", "beta", "gamma")
"""What can be loaded."""


class Adapters(Service):
    """Serves AdminService, and refuses adapters that are not loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters: dict[str, str] = {}

    def parts(self) -> dict[str, Answer]:
        """With the RPCs of the operator."""
        return {
            **super().parts(),
            "AdminService.LoadAdapter": lambda request, call: self.load_adapter(request),
            "AdminService.UnloadAdapter": lambda request, call: self.unload_adapter(request),
            "AdminService.ListAdapters": lambda request, call: self.list_adapters(),
            "AdminService.ResetPrefixCache": lambda request, call: self.reset_prefix_cache(),
        }

    async def load_adapter(self, request: pb.LoadAdapterRequest) -> pb.LoadAdapterResponse:
        """Load, or find it loaded."""
        self.require("lora")
        if request.source not in SOURCES:
            message = "source: no such folder below the adapter folder"
            raise Refusal(pb.ERROR_REASON_MODEL_NOT_FOUND, message, field="source")
        if self.is_another(request):
            raise Refusal(pb.ERROR_REASON_ADAPTER_EXISTS, "name: another adapter has it", field="name")
        self.make_room(request)
        self.adapters[request.name] = request.source
        return pb.LoadAdapterResponse(adapter=self.adapter(request.name))

    def is_another(self, request: pb.LoadAdapterRequest) -> bool:
        """True when the name belongs to something else."""
        taken = self.adapters.get(request.name, request.source)
        return taken != request.source or request.name == self.config.model

    def make_room(self, request: pb.LoadAdapterRequest) -> None:
        """Refuse what goes beyond the limit."""
        if request.name not in self.adapters and len(self.adapters) >= self.config.limits.max_loras:
            raise Refusal(pb.ERROR_REASON_ADAPTER_LIMIT, "as many adapters as may be are loaded")

    async def unload_adapter(self, request: pb.UnloadAdapterRequest) -> pb.UnloadAdapterResponse:
        """Forget an adapter that nobody uses."""
        self.require("lora")
        if request.name not in self.adapters:
            raise Refusal(pb.ERROR_REASON_MODEL_NOT_FOUND, "name: is not loaded", field="name")
        if self.is_in_use(request.name):
            raise Refusal(pb.ERROR_REASON_ADAPTER_IN_USE, "name: requests are using it", field="name")
        del self.adapters[request.name]
        self.forget_adapter(request.name)
        return pb.UnloadAdapterResponse()

    def is_in_use(self, name: str) -> bool:
        """True when a live request has it."""
        return any(job.request.routing.lora_name == name for job in self.live.values())

    async def list_adapters(self) -> pb.ListAdaptersResponse:
        """What is loaded."""
        self.require("lora")
        return pb.ListAdaptersResponse(adapters=[self.adapter(name) for name in sorted(self.adapters)])

    def adapter(self, name: str) -> pb.Adapter:
        """One of them."""
        return pb.Adapter(name=name, source=self.adapters[name], rank=8)

    async def reset_prefix_cache(self) -> pb.ResetPrefixCacheResponse:
        """Drop what nobody holds."""
        self.require("prefix_cache")
        return pb.ResetPrefixCacheResponse(blocks_freed=self.clear_cache())

    def check_model(self, name: str) -> None:
        """A model may be an adapter as well."""
        if name not in self.adapters:
            super().check_model(name)

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        """An adapter has to be loaded."""
        super().check_gates(request)
        self.check_adapter(request)

    def check_adapter(self, request: pb.PreprocessedRequest) -> None:
        """Name one adapter, in one of two fields."""
        name, model = request.routing.lora_name, request.model
        if name and name not in self.adapters:
            message = "routing.lora_name: is not loaded"
            raise Refusal(pb.ERROR_REASON_MODEL_NOT_FOUND, message, field="routing.lora_name")
        if model in self.adapters and name not in ("", model):
            raise invalid("routing.lora_name", "is not the model", name, model)
        if model in self.adapters:
            request.routing.lora_name = model
