"""Servers that make too much, or too little, of what travels beside a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc

from enginewire import v1 as pb
from enginewire.conformance.mutants import each_changed, mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import CAPABILITIES, Settings

Responses = AsyncIterator[pb.GenerateResponse]


def _key(call: Call, name: str) -> str:
    return next((str(value) for key, value in call.metadata if key == name), "")


@mutant("bad_traceparent_rejected", kills="MDT-01")
class BadTraceparentRejected(Reference):
    async def generate(self, request: pb.GenerateRequest, call: Call) -> Responses:
        if len(_key(call, "traceparent")) not in (0, 55):
            raise invalid("traceparent", "is malformed", 1, "a trace context")
        async for response in super().generate(request, call):
            yield response


@mutant("bad_traceparent_rejected_by_load", kills="MDT-01")
class BadTraceparentRejectedByLoad(Reference):
    def routes(self) -> dict[str, Callable[[Any, Call], Any]]:
        async def get_load(request: pb.GetLoadRequest, call: Call) -> pb.GetLoadResponse:
            if _key(call, "traceparent").startswith("ff"):
                raise Refusal(pb.ERROR_REASON_INTERNAL, "fault 08be")
            return await self.get_load()

        return {**super().routes(), "DiscoveryService.GetLoad": get_load}


@mutant("unknown_metadata_rejected", kills="MDT-03")
class UnknownMetadataRejected(Reference):
    async def generate(self, request: pb.GenerateRequest, call: Call) -> Responses:
        for key, _ in call.metadata:
            if key.startswith("x-"):
                raise invalid(key, "is not known", 1, "known keys")
        async for response in super().generate(request, call):
            yield response


@mutant("binary_metadata_rejected", kills="MDT-03")
class BinaryMetadataRejected(Reference):
    async def generate(self, request: pb.GenerateRequest, call: Call) -> Responses:
        for key, _ in call.metadata:
            if key.endswith("-bin"):
                raise invalid(key, "is not text", 1, "text")
        async for response in super().generate(request, call):
            yield response


@mutant("large_metadata_loses_data", kills="MDT-07", also="ERR-12/seen")
class LargeMetadataLosesData(Reference):
    """Its library lets everything through."""

    def server_options(self) -> list[tuple[str, int]]:
        sizes = ("grpc.max_metadata_size", "grpc.absolute_max_metadata_size")
        return [*super().server_options(), *((name, 1 << 20) for name in sizes)]

    async def generate(self, request: pb.GenerateRequest, call: Call) -> Responses:
        if sum(len(value) for _, value in call.metadata) > 1 << 13:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "fault 4c11", code=grpc.StatusCode.DATA_LOSS)
        async for response in super().generate(request, call):
            yield response


@each_changed(Reference.responses, "id_not_echoed", kills="MDT-04", also="STR-07/seen")
def id_not_echoed(response: pb.GenerateResponse) -> None:
    response.request_id = response.request_id[:100]


@each_changed(Reference.responses, "id_tidied", kills="MDT-04", also="STR-07/seen")
def id_tidied(response: pb.GenerateResponse) -> None:
    response.request_id = response.request_id.replace(":", "-")


@mutant("priority_ignored", kills="MDT-05")
class PriorityIgnored(Reference):
    def fold(self, request: pb.GenerateRequest, call: Call) -> None:
        """Whatever it says."""


@mutant("priority_of_the_key_wins", kills="MDT-05")
class PriorityOfTheKeyWins(Reference):
    def fold(self, request: pb.GenerateRequest, call: Call) -> None:
        if _key(call, "enginewire-priority").isdigit():
            request.request.routing.ClearField("priority")
        super().fold(request, call)


@mutant("priority_of_submits_ignored", kills="MDT-05/multiplexed")
class PriorityOfSubmitsIgnored(Reference):
    """Only calls have metadata."""

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        submit.metadata.clear()
        return super().submitted(submit, call)


@mutant("priorities_are_read_as_python_reads_them", kills="MDT-05")
class PrioritiesAreReadAsPythonReadsThem(Reference):
    def number(self, text: str) -> int:
        return int(text)


@mutant("priorities_are_digits_of_any_script", kills="MDT-05/multiplexed")
class PrioritiesAreDigitsOfAnyScript(Reference):
    def number(self, text: str) -> int:
        return int(text) if text.removeprefix("-").isdecimal() else super().number(text)


@mutant("blanks_around_priorities_are_removed", kills="MDT-05/multiplexed")
class BlanksAroundPrioritiesAreRemoved(Reference):
    def number(self, text: str) -> int:
        return super().number(text.strip())


@mutant("keys_of_other_servers_are_read", kills="MDT-03/unread")
class KeysOfOtherServersAreRead(Reference):
    """What it cannot honour it refuses, also where nobody asked it to read."""

    def fold(self, request: pb.GenerateRequest, call: Call) -> None:
        super().fold(request, call)
        if _key(call, "enginewire-dp-rank") not in ("", "0"):
            raise invalid("routing.dp_rank", "is not served here", 1, "0")


@mutant("routing_keys_have_to_agree", kills="MDT-03/unread")
class RoutingKeysHaveToAgree(Reference):
    def fold(self, request: pb.GenerateRequest, call: Call) -> None:
        super().fold(request, call)
        routing, key = request.request.routing, _key(call, "enginewire-routing-key")
        if key and routing.HasField("routing_key") and routing.routing_key != key:
            raise invalid("routing.routing_key", "is another one", key, "the same")


@mutant("keys_of_submits_have_to_be_numbers", kills="MDT-03/unread")
class KeysOfSubmitsHaveToBeNumbers(Reference):
    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        if not submit.metadata.get("enginewire-dp-rank", "0").isdecimal():
            raise invalid("enginewire-dp-rank", "is no number", 1, "a number")
        return super().submitted(submit, call)


@mutant("embeds_read_every_key", kills="MDT-03/unread")
class EmbedsReadEveryKey(Reference):
    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        if _key(call, "enginewire-dp-rank") not in ("", "0"):
            raise invalid("routing.dp_rank", "is not served here", 1, "0")
        return await super().embed(request, call)


RANKS = replace(Settings(), capabilities=(*set(CAPABILITIES) - {"kv_events"}, "data_parallel"), ranks=2)
"""Without KV events: the reference has those of one rank."""


@mutant("rank_modulo", kills="MDT-06")
class RankModulo(Reference):
    settings = RANKS

    def check_rank(self, request: pb.PreprocessedRequest) -> None:
        request.routing.dp_rank %= self.settings.ranks


@mutant("last_rank_refused", kills="MDT-06")
class LastRankRefused(Reference):
    settings = RANKS

    def check_rank(self, request: pb.PreprocessedRequest) -> None:
        if request.routing.dp_rank >= 1:
            raise invalid("routing.dp_rank", "is not served here", request.routing.dp_rank, "0")


@mutant("silently_ignores_ranks", kills="ERR-17/data_parallel")
class SilentlyIgnoresRanks(Reference):
    def allows(self, capability: str) -> bool:
        return capability == "data_parallel" or super().allows(capability)

    def check_rank(self, request: pb.PreprocessedRequest) -> None:
        """Any will do."""


@mutant("fields_of_zero_say_nothing", kills="MDT-05")
class FieldsOfZeroSayNothing(Reference):
    """The key is taken for the field, which was set to 0."""

    def fold(self, request: pb.GenerateRequest, call: Call) -> None:
        if not request.request.routing.priority:
            request.request.routing.ClearField("priority")
        super().fold(request, call)


@mutant("ids_are_kept_by_tenant", kills="ABO-01")
class IdsAreKeptByTenant(Reference):
    """And an abort looks where those of nobody are."""

    def __init__(self) -> None:
        super().__init__()
        self._of_tenants: set[str] = set()

    def fold(self, request: pb.GenerateRequest, call: Call) -> None:
        super().fold(request, call)
        if "enginewire-tenant" in dict(call.metadata):
            self._of_tenants.add(request.request_id)

    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        return pb.ABORT_OUTCOME_UNKNOWN if request_id in self._of_tenants else super().abort_id(request_id)
