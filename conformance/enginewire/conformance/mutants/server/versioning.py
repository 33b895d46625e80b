"""Servers that are wrong about revisions."""

from __future__ import annotations

from hashlib import sha256

from google.protobuf.unknown_fields import UnknownFieldSet

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.v1 import request_pb2


class Told(Reference):
    """A place to be wrong: `told` may change what the server says about itself."""

    async def info(self) -> pb.GetEngineInfoResponse:
        info = await super().info()
        self.told(info)
        return info

    def told(self, info: pb.GetEngineInfoResponse) -> None:
        """Changes `info`."""


@mutant("revision_zero", kills="VER-01")
class RevisionZero(Told):
    def told(self, info: pb.GetEngineInfoResponse) -> None:
        info.contract_revision = 0


@mutant("revision_outside_its_range", kills="VER-01")
class RevisionOutsideItsRange(Told):
    def told(self, info: pb.GetEngineInfoResponse) -> None:
        info.contract_revision = info.maximum_client_revision + 1


@mutant("revision_range_empty", kills="VER-01")
class RevisionRangeEmpty(Told):
    def told(self, info: pb.GetEngineInfoResponse) -> None:
        info.minimum_client_revision = 0


@mutant("digest_missing", kills="VER-01")
class DigestMissing(Told):
    def told(self, info: pb.GetEngineInfoResponse) -> None:
        info.schema_digest = ""


@mutant("digest_of_something_else", kills="VER-01")
class DigestOfSomethingElse(Told):
    """With what is left out of it."""

    def told(self, info: pb.GetEngineInfoResponse) -> None:
        info.schema_digest = sha256(request_pb2.DESCRIPTOR.serialized_pb).hexdigest()


@mutant("version_not_checked", kills="VER-02")
class VersionNotChecked(Reference):
    def check_revision(self, revision: int) -> None:
        """Anybody is welcome, unless he disturbs the check of VER-05."""
        if revision == pb.CONTRACT_REVISION + 1:
            super().check_revision(revision)


@mutant("anybody_may_embed", kills="VER-02/embed")
class AnybodyMayEmbed(Reference):
    def check_embed(self, request: pb.EmbedRequest) -> None:
        asked = pb.EmbedRequest()
        asked.CopyFrom(request)
        asked.client_revision = 0
        super().check_embed(asked)


@mutant("version_range_not_told", kills="VER-02")
class VersionRangeNotTold(Reference):
    def check_revision(self, revision: int) -> None:
        try:
            super().check_revision(revision)
        except Refusal as refusal:
            refusal.detail.metadata.clear()
            raise


@mutant("strict_unknown_fields", kills="VER-03")
class StrictUnknownFields(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        if request.client_revision and len(UnknownFieldSet(request.request)):
            raise invalid("request", "has an unknown field", 1, "known fields")
        super().validate(request)


@mutant("version_global_state", kills="VER-05", also=("ERR-11/seen", "VER-02/seen"))
class VersionGlobalState(Reference):
    """Ends what a client of the range has running when another one is refused."""

    def validate(self, request: pb.GenerateRequest) -> None:
        try:
            super().validate(request)
        except Refusal as refusal:
            if refusal.detail.reason == pb.ERROR_REASON_REVISION_MISMATCH:
                self.forget()
            raise

    def forget(self) -> None:
        """Only there: what else runs at the time is not the matter."""
        for job in list(self.live.values()):
            if "VER-05" in job.request_id:
                self.fail(job, Refusal(pb.ERROR_REASON_REVISION_MISMATCH, "another client came"))
