"""Servers that accept what no server may accept, or refuse it in another way."""

from __future__ import annotations

import math

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import without
from enginewire.conformance.reference.validation import floats_of, ids_of
from enginewire.conformance.session.fields import without_indexes


@mutant("empty_prompt_ok", kills="ERR-01")
class EmptyPromptOk(Reference):
    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        if request.token_ids:
            super().check_prompt(request)


@mutant("oov_ok", kills="ERR-02")
class OovOk(Reference):
    def check_ids(self, request: pb.PreprocessedRequest) -> None:
        """Whatever is asked for."""
        fit_tables(request, self.config.vocab_size)


@mutant("oov_off_by_one", kills="ERR-02")
class OovOffByOne(Reference):
    def check_ids(self, request: pb.PreprocessedRequest) -> None:
        for path, token in ids_of(request):
            if token > self.config.vocab_size:
                raise invalid(path, "is not in the vocabulary", token, "a token id")
        fit_tables(request, self.config.vocab_size)


def fit_tables(request: pb.PreprocessedRequest, vocab_size: int) -> None:
    """Leave out biases that would break the tables of the reference; other tokens stand for such outputs."""
    for entry in list(request.sampling_options.logit_bias):
        if entry.token_id >= vocab_size:
            request.sampling_options.logit_bias.remove(entry)
    for choice in request.resume.choices:
        ids = [token % vocab_size for token in choice.generated_token_ids]
        choice.generated_token_ids[:] = ids


@mutant("oov_in_a_list_ok", kills="ERR-02")
class OovInAListOk(Reference):
    def check_ids(self, request: pb.PreprocessedRequest) -> None:
        for path, token in ids_of(request):
            if token >= self.config.vocab_size and "stop_token_ids_hidden" not in path:
                raise invalid(path, "is not in the vocabulary", token, "a token id")


@mutant("nan_ok", kills="ERR-03")
class NanOk(Reference):
    def check_floats(self, request: pb.PreprocessedRequest) -> None:
        for path, number in floats_of(request):
            if math.isinf(number):
                raise invalid(path, "is not finite", number, "finite numbers")


@mutant("infinity_ok", kills="ERR-03")
class InfinityOk(Reference):
    def check_floats(self, request: pb.PreprocessedRequest) -> None:
        for path, number in floats_of(request):
            if math.isnan(number) or (math.isinf(number) and path != "request_timestamp_ms"):
                raise invalid(path, "is not finite", number, "finite numbers")


@mutant("nan_without_its_field", kills="ERR-03")
class NanWithoutItsField(Reference):
    def check_floats(self, request: pb.PreprocessedRequest) -> None:
        try:
            super().check_floats(request)
        except Refusal as refusal:
            if without_indexes(refusal.detail.field).startswith("router"):
                refusal.detail.field = "extra_args"
            raise


@mutant("overlength_ok", kills="ERR-04", also="INF-04/seen")
class OverlengthOk(Reference):
    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        if len(request.token_ids) < self.config.context_length:
            super().check_prompt(request)


@mutant("overlength_truncated", kills="ERR-04", also=("INF-04/seen", "USE-02/seen"))
class OverlengthTruncated(Reference):
    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        if (excess := len(request.token_ids) - self.config.context_length) >= 0:
            del request.token_ids[: excess + 8]
        super().check_prompt(request)


@mutant("overlength_without_reason", kills="ERR-04")
class OverlengthWithoutReason(Reference):
    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        if len(request.token_ids) > self.config.context_length:
            raise invalid("token_ids", "are too many", len(request.token_ids), "the window")
        super().check_prompt(request)


@mutant("unknown_model_served", kills="ERR-06")
class UnknownModelServed(Reference):
    def check_model(self, name: str) -> None:
        """Any name will do."""


@mutant("own_name_unknown", kills="ERR-06")
class OwnNameUnknown(Reference):
    def check_model(self, name: str) -> None:
        super().check_model(name and f"folder/{name}")


@mutant("name_shown_unknown", kills="ERR-06")
class NameShownUnknown(Reference):
    def check_model(self, name: str) -> None:
        super().check_model("unknown" if name == self.config.served_model_name else name)


@mutant("unknown_enum_crash", kills="ERR-07")
class UnknownEnumCrash(Reference):
    def check_enums(self, request: pb.PreprocessedRequest) -> None:
        action = request.routing.session_control.action
        if action not in pb.SessionAction.values():
            raise Refusal(pb.ERROR_REASON_INTERNAL, "fault 1f6c")


@mutant("unknown_enum_is_another_field", kills="ERR-07")
class UnknownEnumIsAnotherField(Reference):
    def check_enums(self, request: pb.PreprocessedRequest) -> None:
        action = request.routing.session_control.action
        if action not in pb.SessionAction.values():
            raise invalid("routing.priority", "is not known", action, "a priority")


@mutant("contradiction_accepted", kills="ERR-21")
class ContradictionAccepted(Reference):
    def check_contradictions(self, options: pb.SamplingOptions) -> None:
        """It will show soon enough."""

    def nothing_left(self) -> Refusal:
        return Refusal(pb.ERROR_REASON_INTERNAL, "fault 93bd", metadata={"error_id": "93bd"})


@mutant("contradiction_of_two_accepted", kills="ERR-21")
class ContradictionOfTwoAccepted(ContradictionAccepted):
    def check_contradictions(self, options: pb.SamplingOptions) -> None:
        if len(options.allowed_token_ids) == 1:
            Reference.check_contradictions(self, options)


@mutant("contradiction_of_a_repeated_id_accepted", kills="ERR-21")
class ContradictionOfARepeatedIdAccepted(ContradictionAccepted):
    """Lists of different lengths cannot be the same."""

    def check_contradictions(self, options: pb.SamplingOptions) -> None:
        if len(set(options.allowed_token_ids)) == len(options.allowed_token_ids):
            Reference.check_contradictions(self, options)


@mutant("contradiction_names_another_field", kills="ERR-21")
class ContradictionNamesAnotherField(Reference):
    def check_contradictions(self, options: pb.SamplingOptions) -> None:
        try:
            super().check_contradictions(options)
        except Refusal as refusal:
            refusal.detail.field = "sampling_options"
            raise


@mutant("internal_without_id", kills=("ERR-21/later", "ERR-22"))
class InternalWithoutId(Reference):
    def nothing_left(self) -> Refusal:
        return Refusal(pb.ERROR_REASON_INTERNAL, "no token to choose", metadata={})


@mutant("internal_with_id_in_details_only", kills=("ERR-21/later", "ERR-22"))
class InternalWithIdInDetailsOnly(Reference):
    def nothing_left(self) -> Refusal:
        return Refusal(pb.ERROR_REASON_INTERNAL, "no token to choose", metadata={"error_id": "93bd"})


@mutant("late_contradictions_are_faults", kills="ERR-21/later")
class LateContradictionsAreFaults(Reference):
    def nothing_left(self) -> Refusal:
        return Refusal(pb.ERROR_REASON_INTERNAL, "no token to choose")


def _ignores_a_range(path: str) -> None:
    """Registers a server that takes any value of the field to be its default."""

    class RangeUnchecked(Reference):
        def validate(self, request: pb.GenerateRequest) -> None:
            try:
                super().validate(request)
            except Refusal as refusal:
                if without_indexes(refusal.detail.field) != path or "finite" in refusal.message:
                    raise
                part, _, name = path.partition(".")
                getattr(request.request, part).ClearField(name)

    name = path.split(".")[-1]
    kills = ("ERR-05", "ERR-21") if name == "bad_words_token_ids" else "ERR-05"
    mutant(f"range_unchecked_{name}", kills=kills)(RangeUnchecked)


for _path in (
    "sampling_options.temperature",
    "sampling_options.top_p",
    "sampling_options.top_k",
    "sampling_options.min_p",
    "sampling_options.presence_penalty",
    "sampling_options.frequency_penalty",
    "sampling_options.repetition_penalty",
    "sampling_options.logit_bias",
    "sampling_options.bad_words_token_ids",
    "output_options.stream_interval",
):
    _ignores_a_range(_path)


@mutant("ids_of_less_than_they_may_have", kills=("ERR-27", "MDT-04"))
class IdsOfLessThanTheyMayHave(Reference):
    def check_request_id(self, request_id: str) -> None:
        super().check_request_id(request_id and f"{request_id}-")


@mutant("capability_wanted_for_nothing", kills="ERR-23")
class CapabilityWantedForNothing(Reference):
    """Of those that this one lacks, whatever the value."""

    settings = without("penalties", "min_p")

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        super().check_gates(request)
        options = request.sampling_options
        for name in ("presence_penalty", "repetition_penalty", "min_p"):
            if options.HasField(name):
                message = f"{name}: is not offered here"
                raise Refusal(pb.ERROR_REASON_UNSUPPORTED, message, field=f"sampling_options.{name}")


@mutant("best_of_n_is_refused", kills="ERR-23")
class BestOfNIsRefused(Reference):
    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        super().check_gates(request)
        if request.sampling_options.best_of > 1:
            message = "sampling_options.best_of: is not offered here"
            raise Refusal(pb.ERROR_REASON_UNSUPPORTED, message, field="sampling_options.best_of")


@mutant("zero_priority_is_refused", kills="ERR-23")
class ZeroPriorityIsRefused(Reference):
    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        super().check_gates(request)
        if request.routing.HasField("priority") and not request.routing.priority:
            raise invalid("routing.priority", "is out of range", 0, "another number")


@mutant("queue_full_says_nothing_more", kills="ERR-24")
class QueueFullSaysNothingMore(Reference):
    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal as refusal:
            refusal.detail.metadata.clear()
            raise


@mutant("queue_full_without_a_time", kills="ERR-24")
class QueueFullWithoutATime(Reference):
    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal as refusal:
            refusal.detail.ClearField("retry_after")
            raise


@mutant("ids_of_any_length", kills="ERR-27")
class IdsOfAnyLength(Reference):
    def check_request_id(self, request_id: str) -> None:
        super().check_request_id(request_id[:128])


@mutant("tails_of_lists_are_not_read", kills="ERR-02")
class TailsOfListsAreNotRead(Reference):
    def check_ids(self, request: pb.PreprocessedRequest) -> None:
        unread = [f"stop_conditions.stop_token_ids[{place}]" for place in range(128, 1024)]
        for path, token in ids_of(request):
            if token >= self.config.vocab_size and path not in unread:
                raise invalid(path, "is not in the vocabulary", token, "a token id")


@mutant("numbers_of_later_entries_are_not_read", kills="ERR-03")
class NumbersOfLaterEntriesAreNotRead(Reference):
    def check_floats(self, request: pb.PreprocessedRequest) -> None:
        for path, number in floats_of(request):
            if not math.isfinite(number) and "[1]" not in path:
                raise invalid(path, "is not finite", number, "finite numbers")


@mutant("later_choices_may_have_had_any_token", kills="ERR-02")
class LaterChoicesMayHaveHadAnyToken(Reference):
    def check_ids(self, request: pb.PreprocessedRequest) -> None:
        for choice in request.resume.choices[1:]:
            ids = [token % self.config.vocab_size for token in choice.generated_token_ids]
            choice.generated_token_ids[:] = ids
        super().check_ids(request)


@mutant("later_biases_are_clamped", kills="ERR-05")
class LaterBiasesAreClamped(Reference):
    def check_lists(self, request: pb.PreprocessedRequest) -> None:
        for entry in request.sampling_options.logit_bias[1:]:
            entry.bias = min(max(entry.bias, -100), 100)
        super().check_lists(request)
