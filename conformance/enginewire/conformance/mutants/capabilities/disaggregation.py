"""Halves of a pair that lose, repeat or keep what is handed over."""

from __future__ import annotations

import json

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.variants.handoffs import Decode, Pending, Prefill, digest_of

LARGE = 256
"""Prompt tokens."""


@mutant("role_ignored", kills=("DIS-01", "DIS-10"))
class RoleIgnored(Reference):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        pass


@mutant("decode_serves_all", kills="DIS-01")
class DecodeServesAll(Decode):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        pass


@mutant("prefill_takes_handoffs", kills="DIS-01/prefill")
class PrefillTakesHandoffs(Prefill):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        pass


@mutant("prefill_looks_into_handoffs", kills="DIS-01/prefill")
class PrefillLooksIntoHandoffs(Prefill):
    """Before it looks whom they are for."""

    def check_role(self, request: pb.PreprocessedRequest) -> None:
        self.check_floats(request)
        super().check_role(request)


@mutant("numbers_come_before_the_role", kills="DIS-01")
class NumbersComeBeforeTheRole(Reference):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        self.check_floats(request)
        super().check_role(request)


@mutant("decode_refuses_probes", kills="PRB-01/decode")
class DecodeRefusesProbes(Decode):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        if request.is_probe and not request.stop_conditions.max_tokens:
            raise Refusal(pb.ERROR_REASON_ROLE_MISMATCH, "prefill_result: is missing", field="prefill_result")
        super().check_role(request)


@mutant("prefill_refuses_probes", kills="PRB-01/prefill")
class PrefillRefusesProbes(Prefill):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        super().check_role(request)
        if request.is_probe:
            raise Refusal(pb.ERROR_REASON_ROLE_MISMATCH, "is_probe: not here", field="is_probe")


@mutant("prefill_no_handoff", kills="DIS-02")
class PrefillNoHandoff(Prefill):
    def hand_over(self, job: Job) -> pb.PrefillHandoff:
        handed = super().hand_over(job)
        handed.ClearField("params")
        return handed


@mutant("prefill_streams_tokens", kills="DIS-02", also="STR-06/seen")
class PrefillStreamsTokens(Prefill):
    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        if len(choice.tokens) < 2:
            return super(Prefill, self).advance(choice)
        return super().advance(choice)


@mutant("each_choice_is_prefilled", kills="DIS-02")
class EachChoiceIsPrefilled(Prefill):
    def job(self, request_id: str, request: pb.PreprocessedRequest, deadline: float = float("inf")) -> Job:
        return super(Prefill, self).job(request_id, request, deadline)


@mutant("the_first_who_asks_has_it", kills="DIS-03/refused-before")
class TheFirstWhoAsksHasIt(Prefill):
    """It is freed before anybody has looked whose prompt it is."""

    def is_for(self, name: bytes, digest: bytes) -> bool:
        return True


@mutant("handoff_float", kills="DIS-03")
class HandoffFloat(Decode):
    async def fetch(self, handoff: pb.PrefillHandoff, digest: bytes) -> bytes:
        # As a JSON number without integers would bring it.
        number = json.loads(f"{int.from_bytes(handoff.params)}", parse_int=float)
        handoff.params = int(number).to_bytes(len(handoff.params) + 1)[-len(handoff.params) :]
        return await super().fetch(handoff, digest)


@mutant("decode_repeats_first", kills="DIS-04")
class DecodeRepeatsFirst(Decode):
    def next_token(self, choice: Choice, logits: list[float]) -> int:
        if len(choice.tokens) == 1 and not choice.job.request.is_probe:
            return choice.tokens[0]
        return super().next_token(choice, logits)


@mutant("decode_skips_first", kills="DIS-04")
class DecodeSkipsFirst(Decode):
    def next_token(self, choice: Choice, logits: list[float]) -> int:
        if choice.tokens or choice.job.request.is_probe:
            return super().next_token(choice, logits)
        first = super().next_token(choice, list(logits))
        return super().next_token(choice, self.logits([*choice.job.request.token_ids, first]))


@mutant("forged_handoff_ok", kills=("DIS-05", "DIS-05/expired", "DIS-09"))
class ForgedHandoffOk(Decode):
    async def fetch(self, handoff: pb.PrefillHandoff, digest: bytes) -> bytes:
        return await super().fetch(handoff, digest) or self._any

    async def claim(self, request: pb.PreprocessedRequest) -> None:
        self._any = digest_of(request)
        await super().claim(request)

    _any = b""


@mutant("prompt_not_compared", kills="DIS-05/other-prompt")
class PromptNotCompared(Decode):
    async def claim(self, request: pb.PreprocessedRequest) -> None:
        if not await self.fetch(request.prefill_result.handoff, digest_of(request)):
            await super().claim(request)


@mutant("claims_before_it_looks_at_the_id", kills="DIS-03/refused-before")
class ClaimsBeforeItLooksAtTheId(Decode):
    def check_live(self, request_id: str) -> None:
        if not self._is_early:
            super().check_live(request_id)
        self._is_early = False

    def check_abort(self, request_id: str) -> None:
        super().check_abort(request_id)
        self._is_early = True

    _is_early = False


@mutant("expired_handoff_ok", kills="DIS-05/expired")
class ExpiredHandoffOk(Prefill):
    def __init__(self) -> None:
        super().__init__()
        self._old: dict[bytes, Pending] = {}

    def forget_old(self) -> None:
        before = dict(self.pending)
        super().forget_old()
        self._old |= {name: pending for name, pending in before.items() if name not in self.pending}

    def claimed(self, name: bytes) -> Pending | None:
        return super().claimed(name) or self._old.pop(name, None)


@mutant("failed_prefill_handoff", kills="DIS-06")
class FailedPrefillHandoff(Prefill):
    """A large prompt lasts until it is aborted, so that an abort always finds it under way."""

    def has_room(self, job: Job) -> bool:
        return len(job.request.token_ids) < LARGE and super().has_room(job)

    def cancelled(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().cancelled(choice)
        output.prefill_handoff.CopyFrom(self.hand_over(choice.job))
        del self.pending[output.prefill_handoff.params]
        return output


@mutant("prefill_kv_leak", kills="DIS-07/expired")
class PrefillKvLeak(Prefill):
    def load(self) -> pb.Load:
        load = super().load()
        load.pending_transfers += self._leaked
        return load

    def forget_old(self) -> None:
        before = len(self.pending)
        super().forget_old()
        self._leaked += before - len(self.pending)

    _leaked = 0


@mutant("only_the_first_expires", kills="DIS-07/expired")
class OnlyTheFirstExpires(PrefillKvLeak):
    """The others stay until one more is made."""

    def forget_old(self) -> None:
        before = len(self.pending)
        Prefill.forget_old(self)
        self._expired += before - len(self.pending)
        self._leaked = max(self._expired - 1, 0)

    def hand_over(self, job: Job) -> pb.PrefillHandoff:
        self._expired = 0
        return super().hand_over(job)

    _expired = 0


@mutant("claimed_kv_leak", kills="DIS-07")
class ClaimedKvLeak(Prefill):
    def claimed(self, name: bytes) -> Pending | None:
        self._claimed += 1
        return super().claimed(name)

    def load(self) -> pb.Load:
        load = super().load()
        load.pending_transfers += self._claimed
        return load

    _claimed = 0


@mutant("aborted_kv_leak", kills="DIS-07/cancelled")
class AbortedKvLeak(Prefill):
    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        kept = self.pending
        outcome = super().abort_id(request_id)
        self.pending = {
            name: Pending(old.request_id, old.digest, 2 * old.until) for name, old in kept.items()
        }
        return outcome


@mutant("double_prompt_usage", kills="DIS-08", also=("USE-02/seen", "USE-03/seen"))
class DoublePromptUsage(Decode):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.prompt_tokens *= 2
        return usage


@mutant("details_forgotten", kills="DIS-08")
class DetailsForgotten(Decode):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.prompt_tokens_details.cached_tokens = 0
        return usage


@mutant("reuse_undeclared", kills="DIS-09")
class ReuseUndeclared(Prefill):
    def __init__(self) -> None:
        super().__init__()
        self._used: dict[bytes, Pending] = {}

    def claimed(self, name: bytes) -> Pending | None:
        self._used[name] = super().claimed(name) or self._used.get(name) or Pending("", b"", 0)
        return self._used[name]


@mutant("rendezvous_is_ignored", kills="DIS-10")
class RendezvousIsIgnored(Reference):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        request.ClearField("bootstrap_info")
        super().check_role(request)


@mutant("rendezvous_without_a_place_is_none", kills="DIS-10")
class RendezvousWithoutAPlaceIsNone(Reference):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        if not request.bootstrap_info.ByteSize():
            request.ClearField("bootstrap_info")
        super().check_role(request)


@mutant("result_without_a_handoff_is_none", kills="DIS-01")
class ResultWithoutAHandoffIsNone(Reference):
    def check_role(self, request: pb.PreprocessedRequest) -> None:
        if not request.prefill_result.ByteSize():
            request.ClearField("prefill_result")
        super().check_role(request)


@mutant("who_goes_on_has_any_role", kills=("DIS-01", "DIS-10"))
class WhoGoesOnHasAnyRole(Reference):
    """With tokens that were delivered nobody needs another engine's prompt, it thinks."""

    def check_role(self, request: pb.PreprocessedRequest) -> None:
        if not request.HasField("resume"):
            super().check_role(request)
