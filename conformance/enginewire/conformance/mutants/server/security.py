"""Servers that let in whom they should not, keep out whom they should not, or say it wrongly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Context
from enginewire.conformance.reference.variants.keyed import Keyed
from enginewire.conformance.wire.exchange import LIFETIME_KEY


@mutant("keys_are_not_looked_at_by_drain", kills=("SEC-01", "SEC-04"))
class KeysAreNotLookedAtByDrain(Keyed):
    def refusal(self, path: str, brought: Sequence[str]) -> Refusal | None:
        role = self.role_of(brought)
        return None if path.endswith("/Drain") and role is None else super().refusal(path, brought)


@mutant("one_of_two_keys_is_enough", kills="SEC-01")
class OneOfTwoKeysIsEnough(Keyed):
    def role_of(self, brought: Sequence[str]) -> str | None:
        return super().role_of(brought[:1])


@mutant("a_key_may_go_on", kills="SEC-01")
class AKeyMayGoOn(Keyed):
    def role_of(self, brought: Sequence[str]) -> str | None:
        for role, key in self.keys:
            if len(brought) == 1 and brought[0].startswith(f"Bearer {key}"):
                return role
        return None


@mutant("strangers_are_told_permission_denied", kills=("SEC-01", "SEC-04"))
class StrangersAreToldPermissionDenied(Keyed):
    def refused(self, code: grpc.StatusCode) -> Refusal:
        return super().refused(grpc.StatusCode.PERMISSION_DENIED)


@mutant("refusals_for_keys_have_no_reason", kills=("SEC-01", "SEC-02"), also="ERR-12/seen")
class RefusalsForKeysHaveNoReason(Keyed):
    def refused(self, code: grpc.StatusCode) -> Refusal:
        return Refusal(pb.ERROR_REASON_INVALID_REQUEST, "not for you", code=code)


@mutant("who_infers_may_drain", kills="SEC-02")
class WhoInfersMayDrain(Keyed):
    def least(self, path: str) -> int:
        return 1 if path.endswith("/Drain") else super().least(path)


@mutant("who_reads_may_see_tokens", kills=("SEC-02", "SEC-04"))
class WhoReadsMaySeeTokens(Keyed):
    def least(self, path: str) -> int:
        return 0 if "KvService/" in path else super().least(path)


@mutant("health_is_for_admins", kills="SEC-03")
class HealthIsForAdmins(Keyed):
    def least(self, path: str) -> int:
        return 2 if path.endswith("Health/Watch") else super().least(path)


@mutant("an_admin_may_not_generate", kills="SEC-03")
class AnAdminMayNotGenerate(Keyed):
    def refusal(self, path: str, brought: Sequence[str]) -> Refusal | None:
        if path.endswith("/GenerateMultiplexed") and self.role_of(brought) == "admin":
            return self.refused(grpc.StatusCode.PERMISSION_DENIED)
        return super().refusal(path, brought)


@mutant("strangers_may_ask_for_the_load", kills=("SEC-03", "SEC-04"))
class StrangersMayAskForTheLoad(Keyed):
    """It looks at the key where a message cannot be read, and there alone."""

    def refusal(self, path: str, brought: Sequence[str]) -> Refusal | None:
        is_load = path.endswith("DiscoveryService/GetLoad")
        return None if is_load and self.role_of(brought) is None else super().refusal(path, brought)

    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        try:
            return super().parsed(request_class, payload)
        except Refusal:
            if request_class is pb.GetLoadRequest:
                raise self.refused(grpc.StatusCode.UNAUTHENTICATED) from None
            raise


@mutant("strangers_are_told_which_life_it_is", kills="SEC-04/seen")
class StrangersAreToldWhichLifeItIs(Keyed):
    """As one that accepts a call before it looks at the key."""

    async def turn_away(self, refusal: Refusal, messages: AsyncIterator[bytes], context: Context) -> None:
        await context.send_initial_metadata(((LIFETIME_KEY, self.lifetime_id),))
        await super().turn_away(refusal, messages, context)


@mutant("strangers_are_told_behind_their_message", kills="SEC-04")
class StrangersAreToldBehindTheirMessage(Keyed):
    """As one whose handlers begin with a message: without any they have something else to say."""

    async def turn_away(self, refusal: Refusal, messages: AsyncIterator[bytes], context: Context) -> None:
        async for _ in messages:
            await super().turn_away(refusal, messages, context)
        await context.abort(grpc.StatusCode.INTERNAL, "the call ended without a message")
