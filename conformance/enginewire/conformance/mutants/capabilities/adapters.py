"""Servers that lose, share or mix up adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings, without


@mutant("lora_conflict_ok", kills="LOR-01")
class LoraConflictOk(Reference):
    def is_another(self, request: pb.LoadAdapterRequest) -> bool:
        return False


@mutant("lora_reload_fails", kills="LOR-01")
class LoraReloadFails(Reference):
    def is_another(self, request: pb.LoadAdapterRequest) -> bool:
        return request.name in self.adapters


@mutant("lora_reload_needs_room", kills="LOR-01/full")
class LoraReloadNeedsRoom(Reference):
    def make_room(self, request: pb.LoadAdapterRequest) -> None:
        if len(self.adapters) >= self.config.limits.max_loras:
            raise Refusal(pb.ERROR_REASON_ADAPTER_LIMIT, "as many adapters as may be are loaded")


@mutant("adapters_are_names_of_the_model", kills="INF-03/seen", traffic="LOR-01")
class AdaptersAreNamesOfTheModel(Reference):
    async def info(self) -> pb.GetEngineInfoResponse:
        info = await super().info()
        info.config.aliases.extend(self.adapters)
        return info


@mutant("adapters_in_the_order_of_loads", kills="LOR-02")
class AdaptersInTheOrderOfLoads(Reference):
    async def list_adapters(self) -> pb.ListAdaptersResponse:
        await super().list_adapters()
        return pb.ListAdaptersResponse(adapters=map(self.adapter, self.adapters))


@mutant("adapters_are_shown_with_their_first_source", kills="LOR-02")
class AdaptersAreShownWithTheirFirstSource(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, pb.Adapter] = {}

    def adapter(self, name: str) -> pb.Adapter:
        return self._shown.setdefault(name, super().adapter(name))


@mutant("refused_requests_keep_their_adapter", kills="LOR-05/refused")
class RefusedRequestsKeepTheirAdapter(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._kept: set[str] = set()

    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal:
            self._kept.add(job.request.routing.lora_name)
            raise

    async def unload_adapter(self, request: pb.UnloadAdapterRequest) -> pb.UnloadAdapterResponse:
        if request.name in self._kept:
            raise Refusal(pb.ERROR_REASON_ADAPTER_IN_USE, "name: requests use it", field="name")
        return await super().unload_adapter(request)


@mutant("sources_are_shown_with_their_folder", kills="ERR-18/adapter")
class SourcesAreShownWithTheirFolder(Reference):
    async def load_adapter(self, request: pb.LoadAdapterRequest) -> pb.LoadAdapterResponse:
        try:
            return await super().load_adapter(request)
        except Refusal as refusal:
            refusal.args = (f"{refusal} (/data/adapters/{request.source})",)
            raise


@mutant("list_stale", kills="LOR-02")
class ListStale(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._answer = pb.ListAdaptersResponse()

    async def list_adapters(self) -> pb.ListAdaptersResponse:
        stale, self._answer = self._answer, await super().list_adapters()
        return stale


@mutant("lora_fallback_base", kills="LOR-03")
class LoraFallbackBase(Reference):
    def check_adapter(self, request: pb.PreprocessedRequest) -> None:
        if request.routing.lora_name not in self.adapters:
            request.routing.ClearField("lora_name")


@mutant("lora_models_are_the_base", kills="LOR-04/by-model")
class LoraModelsAreTheBase(Reference):
    def check_adapter(self, request: pb.PreprocessedRequest) -> None:
        named = request.routing.lora_name
        super().check_adapter(request)
        request.routing.lora_name = named


@mutant("two_adapters_are_the_first", kills="LOR-04/by-model")
class TwoAdaptersAreTheFirst(Reference):
    def check_adapter(self, request: pb.PreprocessedRequest) -> None:
        if request.model in self.adapters:
            request.routing.lora_name = request.model
        super().check_adapter(request)


@mutant("lora_remembers", kills="LOR-03/unloaded")
class LoraRemembers(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._used: set[str] = set()

    def check_adapter(self, request: pb.PreprocessedRequest) -> None:
        if request.routing.lora_name not in self._used:
            super().check_adapter(request)
        self._used.add(request.routing.lora_name)


@mutant("lora_mixup", kills="LOR-04")
class LoraMixup(Reference):
    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[float]:
        return super().logits(tokens, self.running[0].request.routing.lora_name if self.running else adapter)


@mutant("unload_corrupts", kills="LOR-05")
class UnloadCorrupts(Reference):
    def is_in_use(self, name: str) -> bool:
        return False


@mutant("lora_evicts_silently", kills="LOR-06")
class LoraEvictsSilently(Reference):
    def make_room(self, request: pb.LoadAdapterRequest) -> None:
        if request.name not in self.adapters and len(self.adapters) >= self.config.limits.max_loras:
            del self.adapters[next(iter(self.adapters))]


@mutant("lora_cache_shared", kills="LOR-07")
class LoraCacheShared(Reference):
    def look_up(self, job: Job) -> int:
        prompts = {(salt, tokens) for salt, _, tokens in self.cache}
        hits = [key for key in self.block_keys(job) if (key[0], key[2]) in prompts]
        return len(hits) * self.settings.block_size if self.is_cacheable(job) else 0


@mutant("blocks_outlive_their_adapter", kills="LOR-07/renamed")
class BlocksOutliveTheirAdapter(Reference):
    def forget_adapter(self, name: str) -> None:
        pass


@mutant("silently_ignores_lora", kills="ERR-17/lora")
class SilentlyIgnoresLora(Reference):
    settings = replace(Settings(), capabilities=("seed",))

    def allows(self, capability: str) -> bool:
        return capability == "lora" or super().allows(capability)

    def check_adapter(self, request: pb.PreprocessedRequest) -> None:
        pass


@mutant("adapters_are_in_use_once_they_run", kills="LOR-05/queued")
class AdaptersAreInUseOnceTheyRun(Reference):
    def is_in_use(self, name: str) -> bool:
        return any(job.request.routing.lora_name == name for job in self.running)


@mutant("no_adapters_are_an_empty_list", kills="ERR-17/lora")
class NoAdaptersAreAnEmptyList(Reference):
    settings = without("lora")

    async def list_adapters(self) -> pb.ListAdaptersResponse:
        return pb.ListAdaptersResponse()


@mutant("adapters_that_a_model_names_are_free", kills="LOR-05/by-model")
class AdaptersThatAModelNamesAreFree(Reference):
    """In use is what `routing.lora_name` names."""

    def is_in_use(self, name: str) -> bool:
        return any(
            job.request.routing.lora_name == name and job.request.model != name for job in self.live.values()
        )


@mutant("sources_elsewhere_may_be_there", kills="LOR-08")
class SourcesElsewhereMayBeThere(Reference):
    def is_elsewhere(self, source: str) -> bool:
        return Path("/folder", source).exists()

    async def load_adapter(self, request: pb.LoadAdapterRequest) -> pb.LoadAdapterResponse:
        try:
            return await super().load_adapter(request)
        except Refusal as refusal:
            if refusal.detail.field == "source" and self.is_elsewhere(request.source):
                message = "source: is not below the adapter folder"
                raise Refusal(pb.ERROR_REASON_MODEL_NOT_FOUND, message, field="source") from None
            raise
