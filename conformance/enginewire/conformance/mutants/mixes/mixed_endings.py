"""Servers that end choices rightly under one option and wrongly under two: only a mix of options shows it."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.choices import GOES_ON, Ending
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call

EOS, STOP, LENGTH = pb.FINISH_REASON_EOS, pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH
PLACES = 16
"""How many ids some engines keep of a list."""


def delivered(choice: Choice) -> int:
    """How many tokens of a choice were handed in."""
    named = [entry for entry in choice.job.request.resume.choices if entry.index == choice.index]
    return len(named[0].generated_token_ids) if named else 0


class KnowsItsStreams(Reference):
    """A reference that can tell what came over a multiplexed stream."""

    def __init__(self) -> None:
        super().__init__()
        self._multiplexed: set[str] = set()

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        self._multiplexed.add(submit.generate.request_id)
        return super().submitted(submit, call)

    def is_multiplexed(self, job: Job) -> bool:
        return job.request_id in self._multiplexed


class _LastAllowed(Reference):
    """Looks at max_tokens before it looks at one kind of stops."""

    missed = EOS

    def ending(self, choice: Choice, token: int) -> Ending:
        reason, match = super().ending(choice, token)
        is_last = len(choice.tokens) >= self.room(choice)
        return (LENGTH, None) if is_last and reason == self.missed else (reason, match)


@mutant("last_eos_is_length", kills="STP-04/drawn")
class LastEosIsLength(_LastAllowed):
    missed = EOS


@mutant("last_stop_is_length", kills="STP-01/drawn")
class LastStopIsLength(_LastAllowed):
    missed = STOP


@mutant("match_names_the_first_of_the_list", kills="STP-03/drawn")
class MatchNamesTheFirstOfTheList(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        reason, match = super().stopped(choice, token)
        # Without ids it is a stop string that matched.
        ids = self.caller_stops(choice.job.request)
        return reason, pb.StopMatch(token_id=ids[0]) if match and ids else match


@mutant("match_of_later_choices_missing", kills="STP-03/drawn")
class MatchOfLaterChoicesMissing(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        reason, match = super().stopped(choice, token)
        return reason, None if choice.index else match


@mutant("eos_in_two_lists_is_named", kills="STP-03/drawn")
class EosInTwoListsIsNamed(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        reason, match = super().stopped(choice, token)
        is_both = reason == EOS and token in self.caller_stops(choice.job.request)
        return reason, pb.StopMatch(token_id=token) if is_both else match


@mutant("sixteen_stop_ids", kills="STP-01/drawn")
class SixteenStopIds(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        conditions = request.stop_conditions
        return [*conditions.stop_token_ids[:PLACES], *conditions.stop_token_ids_visible[:PLACES]]


@mutant("sixteen_eos_ids", kills="STP-04/drawn")
class SixteenEosIds(Reference):
    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return super().system_stops(request)[:PLACES]


@mutant("one_eos_id", kills="STP-04/drawn")
class OneEosId(Reference):
    """Uses the first one of the request's."""

    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        eos = request.eos_token_ids or self.config.eos_token_ids
        return [*eos[:1], *request.stop_conditions.stop_token_ids_hidden]


@mutant("visible_goes_before_hidden", kills="STP-04/drawn")
class VisibleGoesBeforeHidden(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        if token in choice.job.request.stop_conditions.stop_token_ids_visible:
            return STOP, pb.StopMatch(token_id=token)
        return super().stopped(choice, token)


@mutant("hidden_list_replaces_eos", kills=("STP-04/config", "STP-04/drawn"))
class HiddenListReplacesEos(Reference):
    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return list(request.stop_conditions.stop_token_ids_hidden) or super().system_stops(request)


@mutant("first_token_is_no_eos", kills="STP-04/drawn")
class FirstTokenIsNoEos(Reference):
    """With a list of its own: a forced end of sequence of the engine is one."""

    def stopped(self, choice: Choice, token: int) -> Ending:
        reason, match = super().stopped(choice, token)
        is_early = len(choice.tokens) == 1 and choice.job.request.eos_token_ids
        return GOES_ON if reason == EOS and is_early else (reason, match)


@mutant("eos_of_the_request_for_one_choice", kills=("STP-04/drawn", "STP-04/repeating"), also="LIM-02/seen")
class EosOfTheRequestForOneChoice(Reference):
    """Several choices end by the engine's own ids alone."""

    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        if request.sampling_options.n < 2:
            return super().system_stops(request)
        return [*self.config.eos_token_ids, *request.stop_conditions.stop_token_ids_hidden]


@mutant("visible_list_replaces_the_other", kills="STP-01/drawn")
class VisibleListReplacesTheOther(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return list(request.stop_conditions.stop_token_ids_visible) or super().caller_stops(request)


@mutant("stop_in_two_lists_is_none", kills="STP-01/drawn")
class StopInTwoListsIsNone(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        conditions = request.stop_conditions
        both = set(conditions.stop_token_ids) & set(conditions.stop_token_ids_visible)
        return [token for token in super().caller_stops(request) if token not in both]


@mutant("ignored_eos_is_no_stop", kills="STP-01/drawn")
class IgnoredEosIsNoStop(Reference):
    """ignore_eos switches off an id in whichever list it is."""

    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        ignored = self.system_stops(request) if request.stop_conditions.ignore_eos else []
        return [token for token in super().caller_stops(request) if token not in ignored]


@mutant(
    "hidden_eos_dropped",
    kills="STP-02/drawn",
    also=("LIM-06/seen", "RES-04/seen", "RES-05/seen", "SEQ-03/seen", "USE-01/seen"),
)
class HiddenEosDropped(Reference):
    """The token that ended a choice is left out when it is in a hidden list and in a visible one."""

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output, conditions = super().advance(choice), choice.job.request.stop_conditions
        if output.finish_reason == EOS and output.token_ids[-1] in conditions.stop_token_ids_visible:
            del output.token_ids[:]
        return output


@mutant("ends_by_ids_of_its_neighbours", kills="STP-07/drawn", also=("LIM-02/seen", "STP-02/seen"))
class EndsByIdsOfItsNeighbours(Reference):
    """A request without stop ids has the hidden ones of all that run beside it."""

    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        own, conditions = super().system_stops(request), request.stop_conditions
        if self.caller_stops(request) or request.eos_token_ids or conditions.stop_token_ids_hidden:
            return own
        hidden = [job.request.stop_conditions.stop_token_ids_hidden for job in self.running]
        return [*own, *(token for ids in hidden for token in ids)]


class _Least(Reference):
    """Applies min_tokens in a way of its own."""

    def least(self, choice: Choice, token: int) -> int:
        return choice.job.request.stop_conditions.min_tokens

    def ending(self, choice: Choice, token: int) -> Ending:
        if choice.job.request.stop_conditions.min_tokens and len(choice.tokens) < self.least(choice, token):
            return GOES_ON if len(choice.tokens) < self.room(choice) else (LENGTH, None)
        stopped = self.stopped(choice, token)
        if len(choice.tokens) >= self.least(choice, token) and stopped != GOES_ON:
            return stopped
        return super().ending(choice, token)


@mutant("min_tokens_not_for_hidden_ids", kills="LIM-06/drawn", also="RES-05/seen")
class MinTokensNotForHiddenIds(_Least):
    def least(self, choice: Choice, token: int) -> int:
        hidden = choice.job.request.stop_conditions.stop_token_ids_hidden
        return 0 if token in hidden else super().least(choice, token)


@mutant("min_tokens_not_for_visible_ids", kills="LIM-06/drawn", also="RES-05/seen")
class MinTokensNotForVisibleIds(_Least):
    def least(self, choice: Choice, token: int) -> int:
        visible = choice.job.request.stop_conditions.stop_token_ids_visible
        return 0 if token in visible else super().least(choice, token)


@mutant("min_tokens_of_all_choices", kills="LIM-06/drawn", also="RES-05/seen")
class MinTokensOfAllChoices(_Least):
    def least(self, choice: Choice, token: int) -> int:
        siblings = len(choice.job.choices)
        return -(-super().least(choice, token) // siblings)


@mutant("min_tokens_anew_for_resumed_eos", kills="RES-05/drawn", also=("RES-10/seen", "STP-04/seen"))
class MinTokensAnewForResumedEos(_Least):
    def least(self, choice: Choice, token: int) -> int:
        is_eos = token in self.system_stops(choice.job.request)
        return super().least(choice, token) + (delivered(choice) if is_eos else 0)


@mutant("max_tokens_anew_beside_stops", kills="RES-04/drawn", also="RES-10/seen")
class MaxTokensAnewBesideStops(Reference):
    """A resumed choice with stop ids has all its tokens again."""

    def room(self, choice: Choice) -> int:
        again = delivered(choice) if self.caller_stops(choice.job.request) else 0
        return super().room(choice) + again


@mutant("one_more_in_intervals", kills="LIM-01/drawn", also="RES-04/seen")
class OneMoreInIntervals(Reference):
    """One token too many when tokens are gathered by four and there is a minimum."""

    def room(self, choice: Choice) -> int:
        request = choice.job.request
        is_one_more = request.output_options.stream_interval == 4 and request.eos_token_ids
        return super().room(choice) + bool(is_one_more)


@mutant("length_at_the_least_is_eos", kills="LIM-02/drawn", also="STP-04/seen")
class LengthAtTheLeastIsEos(Reference):
    """Where min_tokens is max_tokens."""

    def ending(self, choice: Choice, token: int) -> Ending:
        reason, match = super().ending(choice, token)
        conditions = choice.job.request.stop_conditions
        is_both = reason == LENGTH and 0 < conditions.min_tokens == conditions.max_tokens
        return (EOS, None) if is_both else (reason, match)


@mutant("mux_shows_hidden_ids", kills="MUX-01/drawn", also=("LIM-02/seen", "STP-02/seen", "STP-04/seen"))
class MuxShowsHiddenIds(KnowsItsStreams):
    """Over a multiplexed stream a hidden id is one of the caller's."""

    def stopped(self, choice: Choice, token: int) -> Ending:
        hidden = choice.job.request.stop_conditions.stop_token_ids_hidden
        if self.is_multiplexed(choice.job) and token in hidden:
            return STOP, pb.StopMatch(token_id=token)
        return super().stopped(choice, token)


@mutant("no_room_for_long_lists", kills="INF-09/drawn")
class NoRoomForLongLists(Reference):
    """A long list under a minimum is a fault of the server."""

    def check_lists(self, request: pb.PreprocessedRequest) -> None:
        super().check_lists(request)
        is_long = len(request.stop_conditions.stop_token_ids) > PLACES
        if is_long and request.stop_conditions.min_tokens:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "fault 77ab", metadata={"error_id": "77ab"})


@mutant("resumed_tokens_fill_the_window_twice", kills=("RES-04", "RES-06/drawn"), also="INF-04/seen")
class ResumedTokensFillTheWindowTwice(Reference):
    """As a part of the prompt, and as output."""

    def room(self, choice: Choice) -> int:
        window = self.config.context_length - len(choice.job.request.token_ids)
        return min(super().room(choice), max(window - delivered(choice), 1))
