"""Servers that act on what is for routers, backends and callers."""

from __future__ import annotations

import time

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference


@mutant("router_temperature_is_the_engines", kills="LIM-13")
class RouterTemperatureIsTheEngines(Reference):
    def admit(self, job: Job) -> None:
        override = job.request.router_config_override
        if override.HasField("router_temperature"):
            job.request.sampling_options.temperature = override.router_temperature
        super().admit(job)


@mutant("agent_sessions_have_one_request", kills="LIM-13")
class AgentSessionsHaveOneRequest(Reference):
    def admit(self, job: Job) -> None:
        session = job.request.agent_context.session_id
        for other in [*self.running, *self.waiting] if session else ():
            if other.request.agent_context.session_id == session:
                self.abort(other)
        super().admit(job)


@mutant("old_requests_are_late", kills="LIM-13")
class OldRequestsAreLate(Reference):
    def admit(self, job: Job) -> None:
        sent = job.request.request_timestamp_ms / 1000
        if job.request.HasField("request_timestamp_ms") and time.time() - sent > 3600:
            raise Refusal(pb.ERROR_REASON_DEADLINE_EXCEEDED, "request_timestamp_ms: the request is too old")
        super().admit(job)


@mutant("migrated_requests_leave_the_cache_alone", kills="LIM-13")
class MigratedRequestsLeaveTheCacheAlone(Reference):
    def is_cacheable(self, job: Job) -> bool:
        return super().is_cacheable(job) and not job.request.HasField("migration_link")


@mutant("hints_for_routers_are_checked", kills="LIM-13")
class HintsForRoutersAreChecked(Reference):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        super().check_role(request)
        if request.routing.HasField("prefill_worker_id"):
            message = "routing.prefill_worker_id: no such worker"
            raise Refusal(pb.ERROR_REASON_INVALID_REQUEST, message, field="routing.prefill_worker_id")


@mutant("lists_of_workers_are_bounded", kills="LIM-13")
class ListsOfWorkersAreBounded(Reference):
    def check_sizes(self, request: pb.PreprocessedRequest) -> None:
        super().check_sizes(request)
        if (count := len(request.routing.allowed_worker_ids)) > 64:
            raise invalid("routing.allowed_worker_ids", "has too many entries", count, "at most 64")


@mutant("what_is_expected_is_the_most", kills="LIM-13", also="INF-04/seen")
class WhatIsExpectedIsTheMost(Reference):
    """Where nobody says how many tokens there may be."""

    def admit(self, job: Job) -> None:
        conditions, routing = job.request.stop_conditions, job.request.routing
        if routing.HasField("expected_output_tokens") and not conditions.HasField("max_tokens"):
            conditions.max_tokens = max(routing.expected_output_tokens, 1)
        super().admit(job)
