"""Servers that refuse each mistake alone, and let it pass beside an option that is looked at first."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import without
from enginewire.conformance.wire.stream import num_choices

TRAFFIC = "ERR-12/mixed"


class _Quick(Reference):
    """Does not look at everything of a request with a `stream_interval`."""

    is_quick = False

    def validate(self, request: pb.GenerateRequest) -> None:
        self.is_quick = request.request.output_options.stream_interval > 1
        super().validate(request)


@mutant("runs_of_tokens_for_any_id", kills="ERR-27/seen", traffic=TRAFFIC)
class RunsOfTokensForAnyId(_Quick):
    def check_request_id(self, request_id: str) -> None:
        if not self.is_quick:
            super().check_request_id(request_id)


@mutant("runs_of_tokens_for_any_minimum", kills="LIM-07/seen", traffic=TRAFFIC)
class RunsOfTokensForAnyMinimum(_Quick):
    def check_lengths(self, request: pb.PreprocessedRequest) -> None:
        if not self.is_quick:
            super().check_lengths(request)


@mutant("runs_of_tokens_for_long_lists", kills="LIM-10/seen", also="LOG-09/seen", traffic=TRAFFIC)
class RunsOfTokensForLongLists(_Quick):
    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        if not self.is_quick:
            super().check_limits(request)


@mutant("runs_of_tokens_use_what_is_not_offered", kills="ERR-17/seen", traffic=TRAFFIC)
class RunsOfTokensUseWhatIsNotOffered(_Quick):
    settings = without("min_p", "bad_words", "logit_bias", "allowed_token_ids", "selected_logprobs")

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        if not self.is_quick:
            super().check_gates(request)


@mutant("runs_of_tokens_go_on_twice", kills="RES-09/seen", traffic=TRAFFIC)
class RunsOfTokensGoOnTwice(_Quick):
    """A choice that is named twice goes on from the last of them."""

    def check_lists(self, request: pb.PreprocessedRequest) -> None:
        try:
            super().check_lists(request)
        except Refusal as refusal:
            named = [choice.index for choice in request.resume.choices]
            is_twice = len(set(named)) < len(named) and max(named) < num_choices(request)
            if not (self.is_quick and is_twice and refusal.detail.field == "resume.choices"):
                raise


@mutant("streams_refuse_with_another_field", kills="ERR-12/mixed")
class StreamsRefuseWithAnotherField(Reference):
    """What a stream of many says of a mistake is made elsewhere."""

    def submitted(self, *given: object) -> object:  # type: ignore[override]  # passed on as it is
        try:
            return super().submitted(*given)  # type: ignore[arg-type]
        except Refusal as refusal:
            if refusal.detail.field.startswith("stop_conditions."):
                refusal.detail.field = "stop_conditions"
            raise
