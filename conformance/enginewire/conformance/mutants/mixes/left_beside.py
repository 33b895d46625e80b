"""Servers that are wrong about requests whose callers leave, and only beside some option of these."""

from __future__ import annotations

from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference


@mutant("who_leaves_logprobs_is_not_counted", kills="INF-13/mixed")
class WhoLeavesLogprobsIsNotCounted(Reference):
    def ended(self, job: Job) -> None:
        is_begun = self.live.get(job.request_id) is job and job.completion_tokens > 0
        super().ended(job)
        self.counters.requests_finished -= is_begun and job.request.output_options.HasField("logprobs")


@mutant("tokens_with_rows_are_not_counted", kills="INF-13/mixed")
class TokensWithRowsAreNotCounted(Reference):
    def advance_job(self, job: Job) -> None:
        before = self.counters.tokens_generated
        super().advance_job(job)
        if job.request.output_options.HasField("logprobs"):
            self.counters.tokens_generated = before
