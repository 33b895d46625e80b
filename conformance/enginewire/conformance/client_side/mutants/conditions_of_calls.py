"""Backends that are wrong under a second condition only, where choices meet or another attempt is made."""

from __future__ import annotations

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.failure import Failed
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.mutants.engine import Deaf
from enginewire.conformance.client_side.reference.backend import EngineCall, ReferenceBackend, Request


@client_mutant("retry_after_is_not_read", kills="CLI-28/drawn")
class RetryAfterIsNotRead(ReferenceBackend):
    def may_go_on(self, failure: Failed, request: Request) -> bool:
        if super().may_go_on(failure, request):
            failure.status.ClearField("details")
            return True
        return False


@client_mutant("tries_without_end", kills="CLI-28/drawn")
class TriesWithoutEnd(ReferenceBackend):
    def may_go_on(self, failure: Failed, request: Request) -> bool:
        is_new = failure.retryable and not request.has_delivered
        return is_new or super().may_go_on(failure, request)


@client_mutant("resume_forgets_which_have_ended", kills="CLI-29/finished")
class ResumeForgetsWhichHaveEnded(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        resume = super().resume(request)
        for choice in resume.choices:
            choice.finished = choice.finished and choice.index == 0
        return resume


@client_mutant("what_has_ended_is_named_once", kills="CLI-29/finished")
class WhatHasEndedIsNamedOnce(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        resume = super().resume(request)
        for choice in resume.choices:
            choice.finished = choice.finished and request.attempt == 2
        return resume


@client_mutant("resume_names_the_first_choice_twice", kills="CLI-29/drawn")
class ResumeNamesTheFirstChoiceTwice(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        resume = super().resume(request)
        for choice in resume.choices[1:]:
            choice.generated_token_ids[:] = resume.choices[0].generated_token_ids
        return resume


@client_mutant("cut_inside_of_a_character_of_four_bytes", kills="CLI-30/drawn")
class CutInsideOfACharacterOfFourBytes(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        for choice in request.choices:
            if choice.token_ids[-1:] and choice.token_ids[-1] in range(0xF0, 0xF8):
                choice.flush()
        return super().resume(request)


@client_mutant("min_tokens_counts_anew_behind_a_cut", kills="CLI-30/drawn")
class MinTokensCountsAnewBehindACut(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        for choice in request.choices:
            choice._stops.min_tokens += len(choice.token_ids) if choice._stops.min_tokens else 0
        return super().resume(request)


@client_mutant("positions_begin_anew_behind_a_cut", kills=("CLI-28/drawn", "CLI-30/drawn"))
class PositionsBeginAnewBehindACut(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        answer = super().take(output, request)
        if answer and request.attempt > 1:
            answer.first_output_position = 0
        return answer


@client_mutant("gaps_are_not_seen", kills="CLI-25/drawn")
class GapsAreNotSeen(ReferenceBackend):
    def check_output(self, output: pb.LLMEngineOutput, request: Request) -> None:
        if output.index < len(request.choices):
            choice = request.choices[output.index]
            output.first_output_position = min(output.first_output_position, choice.received)
        super().check_output(output, request)


@client_mutant("later_choices_may_repeat", kills="CLI-25/drawn")
class LaterChoicesMayRepeat(ReferenceBackend):
    def check_output(self, output: pb.LLMEngineOutput, request: Request) -> None:
        if 0 < output.index < len(request.choices):
            output.first_output_position = request.choices[output.index].received
        super().check_output(output, request)


@client_mutant("stops_of_several_choices_are_not_told", kills="CLI-06/drawn")
class StopsOfSeveralChoicesAreNotTold(Deaf):
    def leave(self, call: EngineCall, request: Request) -> None:
        if request.is_finished and len(request.choices) > 1:
            self.forget(call)
        else:
            call.cancel()


@client_mutant("usage_counts_the_prompt_of_each_choice", kills="CLI-24/drawn")
class UsageCountsThePromptOfEachChoice(ReferenceBackend):
    def usage(self, request: Request) -> pb.CompletionUsage:
        usage = super().usage(request)
        usage.prompt_tokens *= len(request.choices)
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
        return usage


@client_mutant("usage_of_several_choices_without_stops", kills="CLI-24/drawn")
class UsageOfSeveralChoicesWithoutStops(ReferenceBackend):
    def usage(self, request: Request) -> pb.CompletionUsage:
        usage = super().usage(request)
        missing = sum(bool(choice.match) for choice in request.choices[1:])
        usage.completion_tokens -= missing
        usage.total_tokens -= missing
        return usage


@client_mutant("usage_adds_up_with_each_cut", kills="CLI-30/twice")
class UsageAddsUpWithEachCut(ReferenceBackend):
    def __init__(self, engine: str) -> None:
        super().__init__(engine)
        self._carried: dict[Request, list[int]] = {}

    def resume(self, request: Request) -> pb.Resume:
        carried = sum(len(choice.token_ids) for choice in request.choices)
        self._carried.setdefault(request, []).append(carried)
        return super().resume(request)

    def usage(self, request: Request) -> pb.CompletionUsage:
        usage = super().usage(request)
        usage.completion_tokens += sum(self._carried.get(request, [])[:-1])
        return usage


@client_mutant("one_failure_fails_all", kills="CLI-22/failed")
class OneFailureFailsAll(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        if output.finish_reason == pb.FINISH_REASON_ERROR and len(request.choices) > 1:
            raise Failed(grpc.StatusCode.INTERNAL, pb.ERROR_REASON_INTERNAL, output.error_message)
        return super().take(output, request)


@client_mutant("failed_choice_does_not_say_why", kills="CLI-22/failed")
class FailedChoiceDoesNotSayWhy(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        answer = super().take(output, request)
        if answer:
            answer.ClearField("error_message")
        return answer


@client_mutant("another_attempt_has_no_stops", kills=("CLI-28/drawn", "CLI-30/drawn"))
class AnotherAttemptHasNoStops(ReferenceBackend):
    def may_go_on(self, failure: Failed, request: Request) -> bool:
        if not request.has_delivered:
            for choice in request.choices:
                choice._stops.ClearField("stop")
        return super().may_go_on(failure, request)


@client_mutant("empty_end_of_a_sibling_is_eos", kills=("CLI-22/drawn", "CLI-22/failed"))
class EmptyEndOfASiblingIsEos(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        answer = super().take(output, request)
        is_length = answer is not None and answer.finish_reason == pb.FINISH_REASON_LENGTH
        if answer and output.index and is_length and not output.token_ids:
            answer.finish_reason = pb.FINISH_REASON_EOS
        return answer
