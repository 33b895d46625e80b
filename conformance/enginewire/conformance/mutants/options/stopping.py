"""Servers that end choices at the wrong token, or say it wrongly."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.choices import GOES_ON, Ending
from enginewire.conformance.reference.generation.engine import BlockKey
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.server import Reference

STOPPED = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_EOS)


@mutant("stop_ids_ignored", kills="STP-01")
class StopIdsIgnored(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return []


@mutant("visible_stop_ids_ignored", kills="STP-01")
class VisibleStopIdsIgnored(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return list(request.stop_conditions.stop_token_ids)


@mutant("stops_one_late", kills="STP-01", also=("LIM-02/seen", "STP-02/seen", "STP-03/seen"))
class StopsOneLate(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        earlier = choice.tokens[-2:-1]
        late = super().stopped(choice, earlier[0]) if earlier else GOES_ON
        return late if late[0] == pb.FINISH_REASON_STOP else self._at_once(choice, token)

    def _at_once(self, choice: Choice, token: int) -> Ending:
        ending = super().stopped(choice, token)
        return ending if ending[0] == pb.FINISH_REASON_EOS else GOES_ON


DROPPED = tuple(
    f"{identifier}/seen"
    for identifier in ("LIM-03", "LIM-06", "RES-04", "RES-05", "SEQ-03", "STP-03", "USE-01")
)
"""Where else the token is missed: where tokens are counted, and where the one that stopped is named."""


class _Dropped(Reference):
    """Leaves the token that ended a choice out of its ids."""

    dropped: tuple[pb.FinishReason.ValueType, ...] = ()

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().advance(choice)
        if output.finish_reason in self.dropped and self.leaves_out(choice.job.request, output.token_ids[-1]):
            del output.token_ids[:]
        return output

    def leaves_out(self, request: pb.PreprocessedRequest, token: int) -> bool:
        return True


@mutant("visible_stop_dropped", kills="STP-02", also=DROPPED)
class VisibleStopDropped(_Dropped):
    dropped = (pb.FINISH_REASON_STOP,)

    def leaves_out(self, request: pb.PreprocessedRequest, token: int) -> bool:
        return token in request.stop_conditions.stop_token_ids_visible


@mutant("stop_dropped", kills="STP-02", also=(*DROPPED, "USE-05/seen"))
class StopDropped(_Dropped):
    dropped = (pb.FINISH_REASON_STOP,)


@mutant("eos_dropped", kills="STP-02", also=DROPPED)
class EosDropped(_Dropped):
    dropped = (pb.FINISH_REASON_EOS,)


@mutant("stop_reason_missing", kills="STP-03")
class StopReasonMissing(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        return super().stopped(choice, token)[0], None


@mutant("eos_is_named", kills="STP-03")
class EosIsNamed(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        reason, _ = super().stopped(choice, token)
        return reason, pb.StopMatch(token_id=token) if reason in STOPPED else None


@mutant("eos_ignored", kills="STP-04")
class EosIgnored(Reference):
    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return []


@mutant("hidden_stops_ignored", kills="STP-04")
class HiddenStopsIgnored(Reference):
    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return list(request.eos_token_ids or self.config.eos_token_ids)


@mutant("ignore_eos_ignored", kills="STP-04", also="LIM-02/seen")
class IgnoreEosIgnored(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        own = [*choice.job.request.eos_token_ids, *choice.job.request.stop_conditions.stop_token_ids_hidden]
        return (pb.FINISH_REASON_EOS, None) if token in own else super().stopped(choice, token)


@mutant("eos_ids_added_up", kills="STP-04/config", also="STP-02/seen")
class EosIdsAddedUp(Reference):
    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return [*super().system_stops(request), *self.config.eos_token_ids]


@mutant("hidden_stops_replace_the_engines_ends", kills="STP-04/config", also="STP-04/seen")
class HiddenStopsReplaceTheEnginesEnds(Reference):
    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        own = [*request.eos_token_ids, *request.stop_conditions.stop_token_ids_hidden]
        return own or list(self.config.eos_token_ids)


@mutant("last_stop_wins", kills="STP-05", also="STP-01/seen")
class LastStopWins(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return super().caller_stops(request)[-1:]


@mutant("stop_twice_is_none", kills="STP-05", also="STP-01/seen")
class StopTwiceIsNone(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        ids = super().caller_stops(request)
        return [token for token in ids if ids.count(token) == 1]


@mutant("stop_shared_state", kills="STP-07", also=("LIM-02/seen", "STP-02/seen", "STP-04/seen"))
class StopSharedState(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._stops: dict[BlockKey, list[int]] = {}

    def admit(self, job: Job) -> None:
        super().admit(job)
        for key in self.block_keys(job):
            self._stops.setdefault(key, []).extend(self.caller_stops(job.request))

    def stopped(self, choice: Choice, token: int) -> Ending:
        for key in self.block_keys(choice.job):
            if token in self._stops[key]:
                return pb.FINISH_REASON_STOP, pb.StopMatch(token_id=token)
        return super().stopped(choice, token)


@mutant("prompts_that_end_are_answers", kills="STP-08", also=("STP-02/seen", "STP-04/seen"))
class PromptsThatEndAreAnswers(Reference):
    """A prompt whose last id is the end of sequence is taken for an answer that has ended."""

    def stopped(self, choice: Choice, token: int) -> Ending:
        if choice.job.request.token_ids[-1] in self.settings.eos_token_ids:
            return pb.FINISH_REASON_EOS, None
        return super().stopped(choice, token)


@mutant("stop_matches_prompt", kills="STP-08", also=("LIM-02/seen", "STP-02/seen", "STP-03/seen"))
class StopMatchesPrompt(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        request = choice.job.request
        stops = set(self.caller_stops(request)) & set(request.token_ids)
        if stops and not len(choice.tokens) > 1:
            return pb.FINISH_REASON_STOP, pb.StopMatch(token_id=min(stops))
        return super().stopped(choice, token)
