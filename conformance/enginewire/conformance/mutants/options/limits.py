"""Servers that give too many tokens, too few, or say why wrongly."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.choices import GOES_ON, Ending
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference


@mutant("one_too_many", kills="LIM-01")
class OneTooMany(Reference):
    def room(self, choice: Choice) -> int:
        bounded = choice.job.request.stop_conditions.HasField("max_tokens")
        return super().room(choice) + bounded


@mutant("ignore_max_tokens", kills="LIM-01")
class IgnoreMaxTokens(Reference):
    def room(self, choice: Choice) -> int:
        asked = choice.job.request.stop_conditions.max_tokens
        return max(super().room(choice), 64) if asked == 33 else super().room(choice)


@mutant("length_reported_as_stop", kills="LIM-02", also="LIM-08/seen")
class LengthReportedAsStop(Reference):
    def ending(self, choice: Choice, token: int) -> Ending:
        reason, match = super().ending(choice, token)
        bounded = choice.job.request.stop_conditions.HasField("max_tokens")
        if reason == pb.FINISH_REASON_LENGTH and bounded:
            return pb.FINISH_REASON_STOP, pb.StopMatch(token_id=token)
        return reason, match


@mutant(
    "max1_gives_0",
    kills="LIM-03",
    also=("LIM-06/seen", "LOG-01/seen", "LOG-04/seen", "STP-02/seen", "USE-04/seen"),
)
class Max1Gives0(Reference):
    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().advance(choice)
        if choice.job.request.stop_conditions.max_tokens == 1:
            choice.tokens.clear()
            output.ClearField("token_ids")
            output.completion_usage.CopyFrom(self.usage(choice.job))
        return output


@mutant("max0_unbounded", kills="LIM-04")
class Max0Unbounded(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        conditions = request.request.stop_conditions
        if conditions.HasField("max_tokens") and not conditions.max_tokens:
            conditions.ClearField("max_tokens")
        super().validate(request)


@mutant("unbounded_default", kills="LIM-05", also="INF-04/seen")
class UnboundedDefault(Reference):
    def room(self, choice: Choice) -> int:
        request = choice.job.request
        limited = request.is_probe or request.stop_conditions.HasField("max_tokens")
        return super().room(choice) if limited else 4096


@mutant("min_tokens_ignored", kills="LIM-06", also="RES-05/seen")
class MinTokensIgnored(Reference):
    def ending(self, choice: Choice, token: int) -> Ending:
        stopped = self.stopped(choice, token)
        return stopped if stopped != GOES_ON else super().ending(choice, token)


@mutant("min_gt_max_ok", kills="LIM-07")
class MinGtMaxOk(Reference):
    def check_lengths(self, request: pb.PreprocessedRequest) -> None:
        """Whatever is asked for."""


@mutant("context_end_error", kills="LIM-08")
class ContextEndError(Reference):
    def advance_job(self, job: Job) -> None:
        limited = job.request.is_probe or job.request.stop_conditions.HasField("max_tokens")
        if not limited and job.completion_tokens + 1 == self.room(job.choices[0]):
            self.fail(job, Refusal(pb.ERROR_REASON_INTERNAL, "the window is full"))
        else:
            super().advance_job(job)


@mutant("more_than_fits_is_refused", kills="LIM-09")
class MoreThanFitsIsRefused(Reference):
    def check_lengths(self, request: pb.PreprocessedRequest) -> None:
        super().check_lengths(request)
        window, asked = self.config.context_length, request.stop_conditions.max_tokens
        if asked > window:
            raise Refusal(
                pb.ERROR_REASON_CONTEXT_EXCEEDED, "max_tokens: is beyond the window", field="max_tokens"
            )


@mutant("clamped_one_short", kills="LIM-09", also="INF-04/seen")
class ClampedOneShort(Reference):
    def room(self, choice: Choice) -> int:
        window = self.config.context_length - len(choice.job.request.token_ids)
        return super().room(choice) - (choice.job.request.stop_conditions.max_tokens > window)


@mutant("minimum_without_room", kills="LIM-12")
class MinimumWithoutRoom(Reference):
    """The window is held against the prompt alone."""

    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        least = request.stop_conditions.min_tokens
        request.stop_conditions.ClearField("min_tokens")
        super().check_prompt(request)
        if least:
            request.stop_conditions.min_tokens = least


@mutant("clamped_short_in_intervals", kills="LIM-09/drawn", also="INF-04/seen")
class ClampedShortInIntervals(Reference):
    """More than fits, gathered: the last token has no place in the buffer."""

    def room(self, choice: Choice) -> int:
        request, room = choice.job.request, super().room(choice)
        is_clamped = request.stop_conditions.max_tokens > room and request.output_options.stream_interval > 1
        return room - is_clamped
