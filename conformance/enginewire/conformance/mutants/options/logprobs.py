"""Servers whose tables of log-probabilities are wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

from enginewire import v1 as pb
from enginewire.conformance.mutants import changed, mutant
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.generation.model import IMPOSSIBLE
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference


@mutant("logprob_misaligned", kills="LOG-01")
class LogprobMisaligned(Reference):
    """The row of a token comes with the next one."""

    def __init__(self) -> None:
        super().__init__()
        self._late: dict[Choice, pb.Logprobs] = {}

    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, logits)
        if output.HasField("logprobs"):
            late = self._late.pop(choice, pb.Logprobs())
            self._late[choice] = pb.Logprobs()
            self._late[choice].CopyFrom(output.logprobs)
            output.logprobs.CopyFrom(late)


@mutant("rows_of_long_answers_are_others", kills="LOG-05/long")
class RowsOfLongAnswersAreOthers(Reference):
    """Behind 256 tokens each id has the value of its neighbour."""

    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        is_long = len(choice.tokens) > 256
        super().add_logprobs(choice, output, [*logits[1:], logits[0]] if is_long else logits)


class _Row(Reference):
    """Changes each row of a table of the output."""

    def logprobs(self, logits: list[float], token: int, top: int, selected: Sequence[int]) -> pb.Logprobs:
        row = super().logprobs(logits, token, top, selected)
        self.spoil(row)
        return row

    def spoil(self, row: pb.Logprobs) -> None:
        """Change a row."""


@mutant("logprob_wrong_id", kills="LOG-02")
class LogprobWrongId(_Row):
    def spoil(self, row: pb.Logprobs) -> None:
        if len(row.top_logprobs) > 1 and row.token_logprobs[0] == row.top_logprobs[0]:
            row.token_logprobs[0] = row.top_logprobs[1]


@mutant("selected_in_another_order", kills=("LOG-02/selected", "LOG-11"))
class SelectedInAnotherOrder(_Row):
    def spoil(self, row: pb.Logprobs) -> None:
        row.selected_logprobs[:] = reversed(row.selected_logprobs)


@mutant("selected_once_each", kills="LOG-02/selected", also="LOG-04/seen")
class SelectedOnceEach(Reference):
    def logprobs(self, logits: list[float], token: int, top: int, selected: Sequence[int]) -> pb.Logprobs:
        return super().logprobs(logits, token, top, list(dict.fromkeys(selected)))


@mutant("selected_alone_are_none", kills="LOG-02/selected", also="LOG-01/seen")
class SelectedAloneAreNone(Reference):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, logits)
        if not choice.job.request.output_options.HasField("logprobs"):
            output.ClearField("logprobs")


@mutant("selected_alone_bring_an_alternative", kills="LOG-04/seen", traffic="LOG-*")
class SelectedAloneBringAnAlternative(Reference):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        options = choice.job.request.output_options
        super().add_logprobs(choice, output, logits)
        if options.logprob_token_ids and not options.HasField("logprobs"):
            row = self.logprobs(logits, output.token_ids[0], 1, options.logprob_token_ids)
            output.logprobs.CopyFrom(row)


@mutant("selected_have_no_value_behind_a_mask", kills="LOG-11", also="LOG-02/seen")
class SelectedHaveNoValueBehindAMask(Reference):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, logits)
        allowed = choice.job.request.sampling_options.allowed_token_ids
        selected = choice.job.request.output_options.logprob_token_ids
        for place, token in enumerate(selected if allowed else ()):
            if token not in allowed:
                output.logprobs.selected_logprobs[place] = IMPOSSIBLE


@mutant("nan_logprob", kills="LOG-03")
class NanLogprob(_Row):
    def spoil(self, row: pb.Logprobs) -> None:
        if row.top_n > 1:
            row.top_logprobs[-1] = math.nan


@mutant("infinite_logprob", kills="LOG-03")
class InfiniteLogprob(_Row):
    def spoil(self, row: pb.Logprobs) -> None:
        if row.top_n != 1:
            row.token_logprobs[0] = -math.inf


@mutant("positive_logprob", kills="LOG-03")
class PositiveLogprob(_Row):
    def spoil(self, row: pb.Logprobs) -> None:
        if row.top_n != 1:
            row.token_logprobs[0] = -row.token_logprobs[0]


@mutant("top_unsorted", kills="LOG-04")
class TopUnsorted(_Row):
    def spoil(self, row: pb.Logprobs) -> None:
        row.top_token_ids[:] = reversed(row.top_token_ids)
        row.top_logprobs[:] = reversed(row.top_logprobs)


@mutant("top_repeats", kills="LOG-04")
class TopRepeats(_Row):
    def spoil(self, row: pb.Logprobs) -> None:
        if len(row.top_token_ids) > 1:
            row.top_token_ids[-1], row.top_logprobs[-1] = row.top_token_ids[0], row.top_logprobs[-2]


@mutant("top_has_the_chosen_extra", kills="LOG-04")
class TopHasTheChosenExtra(_Row):
    def spoil(self, row: pb.Logprobs) -> None:
        if row.top_n > 1:
            row.top_token_ids.append(row.top_token_ids[0])
            row.top_logprobs.append(row.top_logprobs[0])


@mutant("top_never_there", kills="LOG-04")
class TopNeverThere(_Row):
    def spoil(self, row: pb.Logprobs) -> None:
        if row.top_n > 1:
            row.ClearField("top_n")
            del row.top_token_ids[:], row.top_logprobs[:]


@mutant("top1_not_chosen", kills="LOG-05")
class Top1NotChosen(Reference):
    """The alternatives are those to the token, without it."""

    def logprobs(self, logits: list[float], token: int, top: int, selected: Sequence[int]) -> pb.Logprobs:
        row = super().logprobs(logits, token, top + 1, selected)
        place = list(row.top_token_ids).index(token) if token in row.top_token_ids else top
        if top < 2:
            place = top
        del row.top_token_ids[place], row.top_logprobs[place]
        row.top_n = top
        return row


@mutant("greedy_second_best", kills=("LOG-05", "SAM-06"))
class GreedySecondBest(Reference):
    def next_token(self, choice: Choice, logits: list[float]) -> int:
        token = super().next_token(choice, logits)
        if self.temperature(choice.job.request.sampling_options) or len(choice.tokens) != 5:
            return token
        second = max((other for other in range(len(logits)) if other != token), key=logits.__getitem__)
        is_allowed = math.isfinite(self.adjusted(choice, list(logits))[second])
        return second if is_allowed else token


@mutant("unnormalised_logits", kills="LOG-06")
class UnnormalisedLogits(Reference):
    def log_softmax(self, logits: list[float]) -> list[float]:
        best = max(logits)
        return [value - best for value in logits]


@changed(Reference.prompt_logprobs, "prompt_logprob_shift", kills="LOG-07")
def prompt_logprob_shift(table: pb.PromptLogprobs) -> None:
    values = list(table.logprobs.token_logprobs)
    table.logprobs.token_logprobs[:] = [*values[1:], *values[:1]]


@changed(Reference.prompt_logprobs, "prompt_logprob_of_the_first_token", kills="LOG-07")
def prompt_logprob_of_the_first_token(table: pb.PromptLogprobs) -> None:
    table.logprobs.token_logprobs.insert(0, 0.0)


@changed(Reference.prompt_logprobs, "prompt_ranks_begin_at_0", kills="LOG-07/seen", traffic="LOG-07")
def prompt_ranks_begin_at_0(table: pb.PromptLogprobs) -> None:
    table.logprobs.token_ranks[:] = [rank - 1 for rank in table.logprobs.token_ranks]


@changed(Reference.prompt_logprobs, "nan_prompt_logprob", kills="LOG-07", also="LOG-03/seen")
def nan_prompt_logprob(table: pb.PromptLogprobs) -> None:
    """In one row, and only among its alternatives."""
    if table.logprobs.top_logprobs:
        table.logprobs.top_logprobs[len(table.logprobs.top_logprobs) // 2] = math.nan


@mutant("prompt_logprobs_everywhere", kills="LOG-07")
class PromptLogprobsEverywhere(Reference):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, logits)
        if choice.job.request.output_options.HasField("prompt_logprobs"):
            output.prompt_logprobs.CopyFrom(self.prompt_logprobs(choice.job))


@mutant("prompt_rows_need_alternatives", kills="LOG-07/seen", traffic="LOG-*")
class PromptRowsNeedAlternatives(Reference):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, logits)
        if not choice.job.request.output_options.prompt_logprobs:
            output.ClearField("prompt_logprobs")


@mutant("unrequested_logprobs", kills="LOG-08")
class UnrequestedLogprobs(Reference):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, logits)
        if not output.HasField("logprobs"):
            output.logprobs.CopyFrom(self.logprobs(logits, output.token_ids[0], 0, ()))


@mutant("logprob_clamped_silently", kills="LOG-09")
class LogprobClampedSilently(Reference):
    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        options = request.output_options
        if options.HasField("logprobs"):
            options.logprobs = min(options.logprobs, self.config.limits.max_logprobs)
        super().check_limits(request)


@mutant("logprobs_unnamed_refusal", kills="LOG-09")
class LogprobsUnnamedRefusal(Reference):
    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        if request.output_options.logprobs > self.config.limits.max_logprobs:
            raise Refusal(pb.ERROR_REASON_INVALID_REQUEST, "too many", field="output_options")
        super().check_limits(request)


@mutant("cum_wrong", kills="LOG-10")
class CumWrong(Reference):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        choice.cum_log_probs = 0.0
        super().add_logprobs(choice, output, logits)


class _AfterSomething(Reference):
    """The tables are those of other logits than the model's."""

    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, self.reported(choice, list(logits)))

    def reported(self, choice: Choice, logits: list[float]) -> list[float]:
        return logits


@mutant("logprobs_after_temperature", kills="LOG-11")
class LogprobsAfterTemperature(_AfterSomething):
    def reported(self, choice: Choice, logits: list[float]) -> list[float]:
        temperature = self.temperature(choice.job.request.sampling_options) or 1.0
        return [value / temperature for value in logits]


@mutant("logprobs_after_bias", kills="LOG-11")
class LogprobsAfterBias(_AfterSomething):
    def reported(self, choice: Choice, logits: list[float]) -> list[float]:
        for entry in choice.job.request.sampling_options.logit_bias:
            logits[entry.token_id] += entry.bias
        return logits


@changed(Reference.prompt_logprobs, "prompt_rows_of_later_parts_shift", kills="LOG-07/long")
def prompt_rows_of_later_parts_shift(table: pb.PromptLogprobs) -> None:
    """A prompt is computed in parts of 256 tokens."""
    for values in (table.logprobs.token_logprobs, table.logprobs.top_logprobs, table.logprobs.top_token_ids):
        each = len(values) // max(len(table.logprobs.token_logprobs), 1)
        begin = 256 * each
        values[begin:] = [*values[begin - each : begin], *values[begin:-each]] if len(values) > begin else []


@mutant("logprobs_after_the_repetition_penalty", kills="LOG-11")
class LogprobsAfterTheRepetitionPenalty(_AfterSomething):
    """Which reaches the tokens of the prompt alone where there are no others."""

    def reported(self, choice: Choice, logits: list[float]) -> list[float]:
        self.apply_penalties(choice, logits)
        return logits
