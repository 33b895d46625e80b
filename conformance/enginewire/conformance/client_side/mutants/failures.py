"""Backends that are wrong when their engine fails: errors, violations, another attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.failure import Failed
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.backend import ATTEMPTS, CONTEXT, ReferenceBackend, Request
from enginewire.conformance.client_side.reference.text import ReferenceChoice
from enginewire.conformance.client_side.stage.alphabet import UNKNOWN


@client_mutant("decode_error_in_other_words", kills="CLI-09")
class DecodeErrorInOtherWords(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        known = self.vocabulary.bytes_of.keys() | self.vocabulary.special.keys()
        unknown = set(output.token_ids) - known
        if any(token < self.info.config.vocab_size for token in unknown):
            raise Failed(grpc.StatusCode.INTERNAL, pb.ERROR_REASON_INTERNAL, "KeyError: 266")
        return super().take(output, request)


@client_mutant("decode_error_of_another_reason", kills="CLI-09")
class DecodeErrorOfAnotherReason(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        if UNKNOWN in output.token_ids:
            raise Failed(grpc.StatusCode.INTERNAL, pb.ERROR_REASON_INTERNAL, "decode error: no such id")
        return super().take(output, request)


@client_mutant("end_without_terminal_is_success", kills="CLI-10")
class EndWithoutTerminalIsSuccess(ReferenceBackend):
    def end_without_terminal(self, request: Request) -> None:
        for choice in request.choices:
            choice.finish = choice.finish or pb.FINISH_REASON_STOP


@client_mutant("starts_again", kills=("CLI-10", "CLI-13/with-resume", "CLI-13/without-resume"))
class StartsAgain(ReferenceBackend):
    def may_go_on(self, failure: Failed, request: Request) -> bool:
        for choice in request.choices:
            choice.received = 0
        return failure.retryable and request.attempt < 5

    def engine_part(self, request: Request) -> pb.PreprocessedRequest:
        part = super().engine_part(request)
        part.ClearField("resume")
        return part


@client_mutant("resumes_anywhere", kills=("CLI-13/without-resume", "CLI-10/choices"))
class ResumesAnywhere(ReferenceBackend):
    def may_go_on(self, failure: Failed, request: Request) -> bool:
        return failure.retryable and request.attempt < 5


@client_mutant("unknown_reason_is_stop", kills="CLI-14")
class UnknownReasonIsStop(ReferenceBackend):
    def check_output(self, output: pb.LLMEngineOutput, request: Request) -> None:
        if output.finish_reason not in pb.FinishReason.values():
            output.finish_reason = pb.FINISH_REASON_STOP
        super().check_output(output, request)


@client_mutant("unknown_reason_crashes", kills="CLI-14")
class UnknownReasonCrashes(ReferenceBackend):
    is_dead = False

    def check_output(self, output: pb.LLMEngineOutput, request: Request) -> None:
        self.is_dead |= output.finish_reason not in pb.FinishReason.values()
        if self.is_dead:
            raise Failed(grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_INTERNAL, "gone")
        super().check_output(output, request)


@client_mutant("takes_repeated_outputs", kills="CLI-25/repeated")
class TakesRepeatedOutputs(ReferenceBackend):
    def check_output(self, output: pb.LLMEngineOutput, request: Request) -> None:
        if output.index < len(request.choices):
            output.first_output_position = request.choices[output.index].received
        super().check_output(output, request)


@client_mutant("takes_any_id", kills="CLI-25/vocabulary")
class TakesAnyId(ReferenceBackend):
    def check_output(self, output: pb.LLMEngineOutput, request: Request) -> None:
        if all(token < self.info.config.vocab_size for token in output.token_ids):
            super().check_output(output, request)


@client_mutant("drops_unknown_choices", kills="CLI-25/index")
class DropsUnknownChoices(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        return super().take(output, request) if output.index < len(request.choices) else None


@client_mutant("late_failure_is_a_status", kills=("CLI-26", "CLI-26/before-token", "CLI-26/accepted"))
class LateFailureIsAStatus(ReferenceBackend):
    async def report(
        self, failure: Failed, request: Request, context: CONTEXT
    ) -> AsyncIterator[pb.Annotated]:
        request.is_accepted = False
        async for item in super().report(failure, request, context):
            yield item


@client_mutant("text_after_the_failure", kills=("CLI-26", "CLI-26/before-token", "CLI-26/accepted"))
class TextAfterTheFailure(ReferenceBackend):
    async def report(
        self, failure: Failed, request: Request, context: CONTEXT
    ) -> AsyncIterator[pb.Annotated]:
        async for item in super().report(failure, request, context):
            yield item
        if failure.code is grpc.StatusCode.INTERNAL and "scripted" in str(failure):
            yield pb.Annotated(event="failed")


@client_mutant("every_refusal_is_internal", kills="CLI-27")
class EveryRefusalIsInternal(ReferenceBackend):
    def failure_of(self, error: grpc.aio.AioRpcError, request: Request) -> Failed:
        failure = super().failure_of(error, request)
        if failure.retryable:
            return failure
        return Failed(grpc.StatusCode.INTERNAL, pb.ERROR_REASON_INTERNAL, str(failure))


@client_mutant("retries_final_refusals", kills="CLI-27")
class RetriesFinalRefusals(ReferenceBackend):
    def may_go_on(self, failure: Failed, request: Request) -> bool:
        return super().may_go_on(failure, request) or (
            failure.code is grpc.StatusCode.INVALID_ARGUMENT and request.attempt == 1
        )


@client_mutant("never_tries_again", kills=("CLI-28", "CLI-28/drawn"))
class NeverTriesAgain(ReferenceBackend):
    def may_go_on(self, failure: Failed, request: Request) -> bool:
        return request.has_delivered and super().may_go_on(failure, request)


@client_mutant("resume_names_a_stale_life", kills="CLI-29")
class ResumeNamesAStaleLife(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        resume = super().resume(request)
        resume.origin_lifetime_id = self.info.engine_lifetime_id
        return resume


@client_mutant("resume_names_whoever_was_asked_last", kills="CLI-29/origin")
class ResumeNamesWhoeverWasAskedLast(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        request.lifetime_id = request.asked_life
        return super().resume(request)


@client_mutant("resume_names_shown_tokens_only", kills="CLI-29")
class ResumeNamesShownTokensOnly(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        resume = super().resume(request)
        for choice in resume.choices:
            del choice.generated_token_ids[-1:]
            request.choices[choice.index].received = len(choice.generated_token_ids)
        return resume


@client_mutant("resume_of_the_caller_has_no_text", kills="CLI-30/of-the-caller")
class ResumeOfTheCallerHasNoText(ReferenceChoice):
    def take_again(self, token_ids: Sequence[int]) -> None:
        self.token_ids += token_ids


@client_mutant("usage_forgets_what_the_caller_handed_in", kills="CLI-30/of-the-caller")
class UsageForgetsWhatTheCallerHandedIn(ReferenceBackend):
    def usage(self, request: Request) -> pb.CompletionUsage:
        usage = super().usage(request)
        for choice in request.part.resume.choices:
            usage.completion_tokens -= len(choice.generated_token_ids)
        return usage


@client_mutant("matcher_starts_anew_after_a_cut", kills="CLI-30")
class MatcherStartsAnewAfterACut(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        for choice in request.choices:
            choice.shown = len(choice.text)
            choice.text += "\0"
            choice.shown += 1
        return super().resume(request)


@client_mutant("usage_counts_attempts", kills="CLI-30")
class UsageCountsAttempts(ReferenceBackend):
    def usage(self, request: Request) -> pb.CompletionUsage:
        usage = super().usage(request)
        usage.completion_tokens += request.attempt - 1
        return usage


@client_mutant("no_token_is_no_acceptance", kills=("CLI-26/before-token", "CLI-26/accepted"))
class NoTokenIsNoAcceptance(ReferenceBackend):
    async def report(
        self, failure: Failed, request: Request, context: CONTEXT
    ) -> AsyncIterator[pb.Annotated]:
        request.is_accepted = request.has_delivered
        async for item in super().report(failure, request, context):
            yield item


@client_mutant("no_message_is_no_acceptance", kills="CLI-26/accepted")
class NoMessageIsNoAcceptance(ReferenceBackend):
    def was_accepted(self, error: grpc.aio.AioRpcError) -> bool:
        return False


@client_mutant("resume_names_no_sum", kills="CLI-30/logprobs")
class ResumeNamesNoSum(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        resume = super().resume(request)
        for choice in resume.choices:
            choice.ClearField("cum_log_probs")
        return resume


@client_mutant("sums_add_up_with_each_cut", kills="CLI-30/logprobs")
class SumsAddUpWithEachCut(ReferenceBackend):
    def resume(self, request: Request) -> pb.Resume:
        resume = super().resume(request)
        for choice in request.choices:
            choice.log_prob += choice.log_prob
        return resume


@client_mutant("what_is_open_ends_with_the_others", kills="CLI-10/choices")
class WhatIsOpenEndsWithTheOthers(ReferenceBackend):
    def end_without_terminal(self, request: Request) -> None:
        if not any(choice.finish for choice in request.choices):
            super().end_without_terminal(request)
        for choice in request.choices:
            choice.finish = choice.finish or pb.FINISH_REASON_STOP


@client_mutant("without_text_nothing_was_delivered", kills="CLI-13/held")
class WithoutTextNothingWasDelivered(ReferenceBackend):
    def engine_part(self, request: Request) -> pb.PreprocessedRequest:
        part = super().engine_part(request)
        if request.attempt > 1 and not any(choice.shown for choice in request.choices):
            part.ClearField("resume")
            for choice in request.choices:
                choice.received = 0
        return part


@client_mutant("exhausted_is_exhausted", kills="CLI-27/by-reason")
class ExhaustedIsExhausted(ReferenceBackend):
    """Whatever has run out."""

    def may_go_on(self, failure: Failed, request: Request) -> bool:
        is_exhausted = failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        return super().may_go_on(failure, request) or (is_exhausted and request.attempt < ATTEMPTS)
