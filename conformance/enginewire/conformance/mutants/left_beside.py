"""Servers that are wrong about requests whose callers leave, and only beside some option of these."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference


@mutant("who_leaves_visible_stops_keeps_a_block", kills="CON-07/mixed")
class WhoLeavesVisibleStopsKeepsABlock(Reference):
    """The one with the text of the stops."""

    lost = 0

    def ended(self, job: Job) -> None:
        is_live = self.live.get(job.request_id) is job
        super().ended(job)
        self.lost += is_live and bool(job.request.stop_conditions.stop_token_ids_visible)

    def load(self) -> pb.Load:
        load = super().load()
        load.kv_blocks_used += self.lost
        return load


@mutant("who_leaves_is_not_counted", kills=("INF-13/mixed", "INF-13/waiting"))
class WhoLeavesIsNotCounted(Reference):
    def ended(self, job: Job) -> None:
        is_live = self.live.get(job.request_id) is job
        super().ended(job)
        self.counters.requests_finished -= is_live and job.completion_tokens > 0


@mutant("tokens_with_rows_are_not_counted", kills="INF-13/mixed")
class TokensWithRowsAreNotCounted(Reference):
    def advance_job(self, job: Job) -> None:
        before = self.counters.tokens_generated
        super().advance_job(job)
        if job.request.output_options.HasField("logprobs"):
            self.counters.tokens_generated = before
