"""Backends that are wrong about what holds for a whole connection to their engine: revision and pings."""

from __future__ import annotations

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.failure import Failed
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.backend import ReferenceBackend


@client_mutant("revision_not_checked", kills="CLI-16")
class RevisionNotChecked(ReferenceBackend):
    def common_revision(self, info: pb.GetEngineInfoResponse) -> int:
        return min(pb.CONTRACT_REVISION, info.maximum_client_revision)


@client_mutant("own_revision_only", kills=("CLI-16/newer-server", "CLI-16/older-server"))
class OwnRevisionOnly(ReferenceBackend):
    def common_revision(self, info: pb.GetEngineInfoResponse) -> int:
        if info.maximum_client_revision != pb.CONTRACT_REVISION:
            code, reason = grpc.StatusCode.FAILED_PRECONDITION, pb.ERROR_REASON_REVISION_MISMATCH
            raise Failed(code, reason, "another revision")
        return pb.CONTRACT_REVISION


@client_mutant("own_revision_to_everyone", kills="CLI-16/older-server")
class OwnRevisionToEveryone(ReferenceBackend):
    def common_revision(self, info: pb.GetEngineInfoResponse) -> int:
        super().common_revision(info)
        return pb.CONTRACT_REVISION


@client_mutant("revision_of_the_server", kills="CLI-16/newer-server")
class RevisionOfTheServer(ReferenceBackend):
    def common_revision(self, info: pb.GetEngineInfoResponse) -> int:
        super().common_revision(info)
        return info.maximum_client_revision


@client_mutant("pings_every_second", kills="CLI-35")
class PingsEverySecond(ReferenceBackend):
    channel_options = (
        *ReferenceBackend.channel_options,
        ("grpc.keepalive_time_ms", 1_000),
        ("grpc.http2.max_pings_without_data", 0),
    )
