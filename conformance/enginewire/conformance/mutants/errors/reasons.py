"""Servers that tell those whom somebody aborts why, however long that is."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference


class RemembersReasons(Reference):
    """A place to be wrong about the reason of the last abort."""

    reason = ""

    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        self.reason = request.reason
        return await super().abort_requests(request)


@mutant("aborted_embeddings_tell_why", kills="MSG-06/seen", also="ERR-12/seen", traffic="EMB-07")
class AbortedEmbeddingsTellWhy(RemembersReasons):
    async def embedded(self, job: Job) -> None:
        async for _ in self.outputs(job):
            raise Refusal(pb.ERROR_REASON_CANCELLED, f"the request was aborted: {self.reason}")


@mutant("early_aborts_tell_why", kills="MSG-06/seen", also="ERR-12/seen", traffic="ABO-11")
class EarlyAbortsTellWhy(RemembersReasons):
    def check_abort(self, request_id: str) -> None:
        if request_id in self.aborted_early:
            raise Refusal(pb.ERROR_REASON_CANCELLED, f"the request was aborted: {self.reason}")
