"""Servers whose limits are one too low or too high, and lists of which they read the beginning."""

from __future__ import annotations

import json
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.mutants.options.rules_for_tokens import OtherOptions
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.reference.validation import RANGES, value_of

READ = 16


@mutant("stop_ids_one_too_few", kills="LIM-10")
class StopIdsOneTooFew(Reference):
    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        super().check_limits(request)
        if len(request.stop_conditions.stop_token_ids_hidden) >= 256:
            raise invalid("stop_conditions.stop_token_ids_hidden", "is above the limit", 256, "at most 255")


@mutant("allowed_ids_one_too_many", kills="LIM-10")
class AllowedIdsOneTooMany(Reference):
    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        removed = request.sampling_options.allowed_token_ids[65536:65537]
        del request.sampling_options.allowed_token_ids[65536:65537]
        super().check_limits(request)
        request.sampling_options.allowed_token_ids.extend(removed)


@mutant("too_many_stop_ids_are_unknown", kills="LIM-10")
class TooManyStopIdsAreUnknown(Reference):
    """Only what is one of the longest lists is refused by something that nobody wrote."""

    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        if len(request.stop_conditions.stop_token_ids_visible) > 256:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "too many", metadata={"error_id": "too many"})
        super().check_limits(request)


class _OtherAnnotations(Reference):
    """Looks at something else in the place of each annotation."""

    def seen(self, text: str) -> str:
        raise NotImplementedError

    def check_sizes(self, request: pb.PreprocessedRequest) -> None:
        other = pb.PreprocessedRequest()
        other.CopyFrom(request)
        other.annotations[:] = map(self.seen, request.annotations)
        super().check_sizes(other)


@mutant("long_annotations_are_let_in", kills="LIM-11")
class LongAnnotationsAreLetIn(_OtherAnnotations):
    def seen(self, text: str) -> str:
        return text[:512]


@mutant("annotations_are_counted_in_characters", kills="LIM-11")
class AnnotationsAreCountedInCharacters(_OtherAnnotations):
    def seen(self, text: str) -> str:
        return "x" * len(text)


@mutant("the_first_hundred_stop_ids", kills="LIM-10/lists", also="STP-01/seen")
class TheFirstHundredStopIds(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        conditions = request.stop_conditions
        return [*conditions.stop_token_ids[:100], *conditions.stop_token_ids_visible]


@mutant("stop_lists_share_a_bound", kills="LIM-10/lists", also="STP-01/seen")
class StopListsShareABound(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return super().caller_stops(request)[:256]


@mutant("the_first_hundred_ends_of_sequence", kills="LIM-10/lists", also="STP-04/seen")
class TheFirstHundredEndsOfSequence(Reference):
    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return super().system_stops(request)[:100]


@mutant("the_first_sixteen_allowed_ids", kills="LIM-10/lists")
class TheFirstSixteenAllowedIds(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        if choice.job.request.stop_conditions.max_tokens == 1:
            del options.allowed_token_ids[READ:]


@mutant("the_first_sixteen_bad_words", kills="LIM-10/lists")
class TheFirstSixteenBadWords(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        del options.bad_words_token_ids[READ:]


@mutant("biases_of_a_long_list_are_cut", kills="LIM-10/lists")
class BiasesOfALongListAreCut(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        del options.logit_bias[64:]


@mutant("the_last_token_of_the_window_is_kept", kills="ERR-04/longest")
class TheLastTokenOfTheWindowIsKept(Reference):
    """A prompt of one token less than the window is refused."""

    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        super().check_prompt(request)
        if len(request.token_ids) == self.config.context_length - 1:
            raise Refusal(pb.ERROR_REASON_CONTEXT_EXCEEDED, "token_ids: no room", field="token_ids")


@mutant("prompts_have_one_token_too_many", kills="LIM-10")
class PromptsHaveOneTokenTooMany(Reference):
    """One above their limit is taken."""

    settings = replace(Settings(), limits={"max_prompt_tokens": 2032})

    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        if len(request.token_ids) != self.config.limits.max_prompt_tokens + 1:
            super().check_prompt(request)


class _OpenEnd(Reference):
    """Refuses the end of one range."""

    path, last = "", 0.0

    def check_ranges(self, request: pb.PreprocessedRequest) -> None:
        super().check_ranges(request)
        if value_of(request, self.path) == self.last:
            raise invalid(self.path, "is out of range", self.last, RANGES[self.path].range)


@mutant("temperature_below_its_end", kills="ERR-05/ends")
class TemperatureBelowItsEnd(_OpenEnd):
    path, last = "sampling_options.temperature", 100.0


@mutant("frequency_penalty_above_its_end", kills="ERR-05/ends")
class FrequencyPenaltyAboveItsEnd(_OpenEnd):
    path, last = "sampling_options.frequency_penalty", -2.0


@mutant("top_k_below_the_vocabulary", kills="ERR-05/ends")
class TopKBelowTheVocabulary(Reference):
    def check_lists(self, request: pb.PreprocessedRequest) -> None:
        super().check_lists(request)
        if request.sampling_options.top_k == self.config.vocab_size:
            raise invalid("sampling_options.top_k", "is above the vocabulary", 0, "its size")


@mutant("brackets_in_texts_are_levels", kills="LIM-10")
class BracketsInTextsAreLevels(Reference):
    def check_sizes(self, request: pb.PreprocessedRequest) -> None:
        super().check_sizes(request)
        if (levels := request.extra_args.count(b"[")) > 64:
            raise invalid("extra_args", "is too deep", levels, "at most 64")


@mutant("guides_are_counted_in_characters", kills="LIM-10")
class GuidesAreCountedInCharacters(Reference):
    def size(self, value: object) -> int:
        return len(value)  # type: ignore[arg-type]  # a text, bytes or a list


@mutant("choices_are_measured_one_by_one", kills="LIM-10")
class ChoicesAreMeasuredOneByOne(Reference):
    def guide_size(self, guided: pb.GuidedDecoding, kind: str) -> int:
        if kind == "choice":
            return max(map(self.size, guided.choice.choices), default=0)
        return super().guide_size(guided, kind)


@mutant("guides_are_measured_with_escapes", kills="LIM-10")
class GuidesAreMeasuredWithEscapes(Reference):
    """As JSON for those who know nothing but ASCII."""

    def guide_size(self, guided: pb.GuidedDecoding, kind: str) -> int:
        return (
            super().guide_size(guided, kind)
            if kind != "choice"
            else len(json.dumps(list(guided.choice.choices)))
        )


@mutant("opaque_json_is_measured_at_the_top_only", kills="LIM-11")
class OpaqueJsonIsMeasuredAtTheTopOnly(Reference):
    def check_sizes(self, request: pb.PreprocessedRequest) -> None:
        top = pb.PreprocessedRequest()
        top.CopyFrom(request)
        for name in ("agent_context", "router_config_override"):
            top.ClearField(name)
        super().check_sizes(top)


@mutant("opaque_json_is_counted_in_characters", kills="LIM-11")
class OpaqueJsonIsCountedInCharacters(Reference):
    """What came as bytes is read first."""

    def size(self, value: object) -> int:
        return len(value.decode()) if isinstance(value, bytes) else super().size(value)
