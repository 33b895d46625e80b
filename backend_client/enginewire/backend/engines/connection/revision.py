"""Which revision of the contract a request names to an engine. Knows nothing about what it brought."""

from __future__ import annotations

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.failure import failed


def common_revision(info: pb.GetEngineInfoResponse) -> int:
    """The newest revision that this client and the engine both know. Raises RequestFailed without one."""
    oldest, newest = info.minimum_client_revision, info.maximum_client_revision
    common = min(pb.CONTRACT_REVISION, newest)
    # Revisions count from 1: an engine that names none accepts nobody.
    if common >= max(oldest, 1):
        return common
    raise failed(
        grpc.StatusCode.FAILED_PRECONDITION,
        pb.ERROR_REASON_REVISION_MISMATCH,
        f"contract revision {pb.CONTRACT_REVISION}, the engine accepts clients of {oldest}..{newest}",
    )
