"""Servers that refuse what they have to in most requests, and forget it in some."""

from __future__ import annotations

import math

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import without
from enginewire.conformance.wire.exchange import LIFETIME_KEY


@mutant("empty_prompts_go_on", kills="ERR-01")
class EmptyPromptsGoOn(Reference):
    """What was delivered counts as a prompt."""

    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        if request.token_ids or not request.resume.choices:
            super().check_prompt(request)


@mutant("first_bias_is_looked_at", kills="ERR-03")
class FirstBiasIsLookedAt(Reference):
    """Another one that is no number adds nothing."""

    def check_floats(self, request: pb.PreprocessedRequest) -> None:
        for entry in request.sampling_options.logit_bias[1:]:
            entry.bias = entry.bias if math.isfinite(entry.bias) else 0.0
        super().check_floats(request)


@mutant("rewards_are_no_penalties", kills="ERR-17/penalties")
class RewardsAreNoPenalties(Reference):
    """Below 0 they are passed over."""

    settings = without("penalties")

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        asked = pb.PreprocessedRequest()
        asked.CopyFrom(request)
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(asked.sampling_options, name) < 0:
                asked.sampling_options.ClearField(name)
        super().check_gates(asked)


@mutant("models_by_their_beginning", kills="ERR-06")
class ModelsByTheirBeginning(Reference):
    def check_model(self, name: str) -> None:
        super().check_model(name[: len(self.config.model)])


@mutant("probes_of_any_model", kills="ERR-06")
class ProbesOfAnyModel(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        if request.request.is_probe:
            request.request.model = ""
        super().validate(request)


@mutant("flags_are_unset_when_false", kills="ERR-17/stop_strings")
class FlagsAreUnsetWhenFalse(Reference):
    settings = without("stop_strings")

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        if not request.output_options.skip_special_tokens:
            request.output_options.ClearField("skip_special_tokens")
        super().check_gates(request)


@mutant("stop_ids_hide_stop_strings", kills="ERR-17/stop_strings")
class StopIdsHideStopStrings(Reference):
    settings = without("stop_strings")

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        if request.stop_conditions.stop_token_ids:
            request.stop_conditions.ClearField("stop")
        super().check_gates(request)


@mutant("ids_hide_embeddings", kills="ERR-17/prompt_embeds")
class IdsHideEmbeddings(Reference):
    settings = without("prompt_embeds")

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        if request.token_ids:
            request.ClearField("prompt_embeds")
        super().check_gates(request)


@mutant("parts_without_items_are_none", kills="ERR-17/multi_modal_part_types")
class PartsWithoutItemsAreNone(Reference):
    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        if not any(part.items for part in request.multi_modal_data):
            request.ClearField("multi_modal_data")
        super().check_gates(request)


@mutant("one_of_one_is_refused", kills="ERR-23")
class OneOfOneIsRefused(Reference):
    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        super().check_gates(request)
        options = request.sampling_options
        if options.best_of == 1 and not options.HasField("n"):
            message = "sampling_options.best_of: is not offered here"
            raise Refusal(pb.ERROR_REASON_UNSUPPORTED, message, field="sampling_options.best_of")


@mutant("contradictions_are_found_late", kills="ERR-21")
class ContradictionsAreFoundLate(Reference):
    """With the first token, when the request has been accepted long ago."""

    def check_contradictions(self, options: pb.SamplingOptions) -> None:
        """Nobody looks at them before there is something to choose from."""

    async def accept(self, job: Job, call: Call) -> None:
        await call.context.send_initial_metadata(((LIFETIME_KEY, self.lifetime_id),))


@mutant("lists_of_the_refused_are_kept", kills="ERR-19")
class ListsOfTheRefusedAreKept(Reference):
    """What a request allows that is refused for it, the next one allows as well."""

    def __init__(self) -> None:
        super().__init__()
        self._left: list[int] = []

    def validate(self, request: pb.GenerateRequest) -> None:
        options = request.request.sampling_options
        allowed = list(options.allowed_token_ids) if "ERR-19" in request.request_id else []
        left, self._left = self._left, allowed or self._left
        super().validate(request)
        if allowed:
            options.allowed_token_ids.extend(left)
            self._left = []


@mutant("streams_have_no_revision", kills="VER-02")
class StreamsHaveNoRevision(Reference):
    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        submit.generate.ClearField("client_revision")
        super().submit(stream, submit, call)


@mutant("minimum_without_maximum_is_clamped", kills="LIM-12")
class MinimumWithoutMaximumIsClamped(Reference):
    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        conditions = request.stop_conditions
        room = self.config.context_length - len(request.token_ids)
        if not conditions.HasField("max_tokens") and 0 < room < conditions.min_tokens:
            conditions.min_tokens = room
        super().check_prompt(request)


@mutant("minimum_of_the_first_choice", kills="LIM-06", also="RES-05/seen")
class MinimumOfTheFirstChoice(Reference):
    def ending(self, choice: Choice, token: int) -> tuple[pb.FinishReason.ValueType, pb.StopMatch | None]:
        stopped = self.stopped(choice, token)
        return stopped if choice.index and stopped[0] else super().ending(choice, token)


@mutant("probes_past_eos_fill_the_window", kills="PRB-01")
class ProbesPastEosFillTheWindow(Reference):
    def room(self, choice: Choice) -> int:
        conditions = choice.job.request.stop_conditions
        if conditions.ignore_eos and not conditions.HasField("max_tokens"):
            return self.config.context_length - len(choice.job.request.token_ids)
        return super().room(choice)


@mutant("resumed_twice_in_the_window", kills=("RES-04", "RES-06/drawn"), also="INF-04/seen")
class ResumedTwiceInTheWindow(Reference):
    """What was handed in is taken for a part of the prompt, and then counted as output too."""

    def room(self, choice: Choice) -> int:
        window = self.config.context_length - len(choice.job.request.token_ids) - choice.handed_in
        return min(super().room(choice), window)


@mutant("later_attempts_have_other_seeds", kills="RES-02")
class LaterAttemptsHaveOtherSeeds(Reference):
    def job(self, request_id: str, request: pb.PreprocessedRequest, deadline: float = math.inf) -> Job:
        job = super().job(request_id, request, deadline)
        job.seed += max(request.resume.attempt, 1) - 1
        return job


@mutant("probes_have_one_token", kills="PRB-02", also=("INF-04/seen", "LIM-02/seen"))
class ProbesHaveOneToken(Reference):
    def room(self, choice: Choice) -> int:
        return 1 if choice.job.request.is_probe else super().room(choice)


@mutant("flags_are_unset_when_true", kills="ERR-17/stop_strings")
class FlagsAreUnsetWhenTrue(Reference):
    """As they are where nobody says anything."""

    settings = without("stop_strings")

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        if request.output_options.skip_special_tokens:
            request.output_options.ClearField("skip_special_tokens")
        super().check_gates(request)


@mutant("embeddings_need_token_ids", kills="ERR-17/prompt_embeds")
class EmbeddingsNeedTokenIds(Reference):
    settings = without("prompt_embeds")

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        if not request.token_ids:
            raise invalid("token_ids", "are empty", 0, "at least 1")
        super().check_gates(request)


@mutant("tokens_of_finished_choices_are_unread", kills="ERR-02")
class TokensOfFinishedChoicesAreUnread(Reference):
    def check_ids(self, request: pb.PreprocessedRequest) -> None:
        read = pb.PreprocessedRequest()
        read.CopyFrom(request)
        for choice in read.resume.choices:
            if choice.finished:
                choice.ClearField("generated_token_ids")
        super().check_ids(read)
