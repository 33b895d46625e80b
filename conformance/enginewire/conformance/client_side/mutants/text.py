"""Backends whose text is wrong: characters, stop strings, stop tokens, choices."""

from __future__ import annotations

from collections.abc import Sequence

from enginewire import v1 as pb
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.backend import ReferenceBackend, Request
from enginewire.conformance.client_side.reference.text import Match, ReferenceChoice


@client_mutant("empty_terminal_without_reason", kills="CLI-01")
class EmptyTerminalWithoutReason(ReferenceChoice):
    def describe_finish(self, answer: pb.BackendOutput, output: pb.LLMEngineOutput) -> None:
        super().describe_finish(answer, output)
        if not output.token_ids:
            answer.finish_reason = pb.FINISH_REASON_UNSPECIFIED


@client_mutant("every_end_is_stop", kills="CLI-01")
class EveryEndIsStop(ReferenceChoice):
    def describe_finish(self, answer: pb.BackendOutput, output: pb.LLMEngineOutput) -> None:
        super().describe_finish(answer, output)
        if self.finish:
            answer.finish_reason = pb.FINISH_REASON_STOP


@client_mutant(
    "shows_stop_string",
    kills=("CLI-02", "CLI-02/inside-a-token", "CLI-02/special-token", "CLI-22", "CLI-30"),
)
class ShowsStopString(ReferenceChoice):
    def shown_until(self, match: Match) -> int:
        return match.end


@client_mutant("drops_the_token_of_a_stop", kills="CLI-02/inside-a-token")
class DropsTheTokenOfAStop(ReferenceChoice):
    def shown_until(self, match: Match) -> int:
        until = super().shown_until(match)
        inside = len(self.bytes_of(self.token_ids[-1])) > len(match.stop)
        return self.shown if inside and until == match.begin else until


@client_mutant("skipped_token_is_no_stop", kills=("CLI-02/special-token", "CLI-04/special-token"))
class SkippedTokenIsNoStop(ReferenceChoice):
    def is_special_stop(self, token: int) -> bool:
        return False


@client_mutant("skipped_stop_not_shown", kills="CLI-04/special-token")
class SkippedStopNotShown(ReferenceChoice):
    def shown_until(self, match: Match) -> int:
        is_special = self.skips() and match.stop in self.vocabulary.special.values()
        return match.begin if is_special else super().shown_until(match)


@client_mutant("matches_within_a_message", kills=("CLI-03", "CLI-22", "CLI-30"))
class MatchesWithinAMessage(ReferenceChoice):
    def find(self, before: int) -> Match | None:
        match = super().find(before)
        return match if match and match.begin >= self.message_begin else None

    def take(self, output: pb.LLMEngineOutput) -> pb.BackendOutput:
        self.message_begin = len(self.text)
        return super().take(output)


@client_mutant("leaks_the_beginning_of_a_stop", kills=("CLI-03", "CLI-22", "CLI-30"))
class LeaksTheBeginningOfAStop(ReferenceChoice):
    def held(self) -> int:
        return 0


@client_mutant("visible_stop_hidden", kills=("CLI-04", "CLI-04/special-token"))
class VisibleStopHidden(ReferenceChoice):
    def shown_until(self, match: Match) -> int:
        return match.begin


@client_mutant("visible_stop_twice", kills=("CLI-04", "CLI-04/special-token"))
class VisibleStopTwice(ReferenceChoice):
    def show(self) -> str:
        visible = self.match and self.request.sampling_options.include_stop_str_in_output
        return super().show() + (self.match.stop if self.match and visible else "")


@client_mutant("decodes_token_by_token", kills=("CLI-05", "CLI-22", "CLI-30", "CLI-34"))
class DecodesTokenByToken(ReferenceChoice):
    def decode(self, data: bytes) -> str:
        return data.decode(errors="replace")


@client_mutant("hidden_tokens_have_no_text", kills="CLI-43")
class HiddenTokensHaveNoText(ReferenceChoice):
    def own_text(self, token: int) -> str:
        return self.bytes_of(token).decode(errors="replace")


@client_mutant("texts_of_tokens_unasked", kills="CLI-43")
class TextsOfTokensUnasked(ReferenceChoice):
    def texts(self, tokens: Sequence[int]) -> list[str]:
        return [self.own_text(token) for token in tokens]


@client_mutant("loses_unfinished_bytes", kills="CLI-05/never-complete")
class LosesUnfinishedBytes(ReferenceChoice):
    def flush(self) -> str:
        return ""


@client_mutant("min_tokens_ignored", kills="CLI-07")
class MinTokensIgnored(ReferenceChoice):
    def is_armed(self) -> bool:
        return True


@client_mutant("min_tokens_off_by_one", kills="CLI-19/boundary")
class MinTokensOffByOne(ReferenceChoice):
    def is_armed(self) -> bool:
        floor = self.request.stop_conditions.min_tokens
        return not floor or len(self.token_ids) > floor


@client_mutant("forgets_text_below_min_tokens", kills=("CLI-19/boundary", "CLI-19/spanning"))
class ForgetsTextBelowMinTokens(ReferenceChoice):
    def find(self, before: int) -> Match | None:
        match = super().find(before)
        floor = self.request.stop_conditions.min_tokens
        return match if match and match.begin >= floor - 1 else None


@client_mutant("rows_wait_for_text", kills="CLI-15")
class RowsWaitForText(ReferenceChoice):
    def rows(self, rows: pb.Logprobs, kept: int) -> pb.Logprobs:
        return super().rows(rows, 0 if self.held() else kept)


@client_mutant("rows_not_cut", kills=("CLI-15", "CLI-15/selected"))
class RowsNotCut(ReferenceChoice):
    def rows(self, rows: pb.Logprobs, kept: int) -> pb.Logprobs:
        return super().rows(rows, len(rows.token_logprobs))


@client_mutant("shows_all_at_the_end", kills="CLI-17")
class ShowsAllAtTheEnd(ReferenceChoice):
    def held(self) -> int:
        return len(self.text) - self.shown if self.stop_strings() else 0


@client_mutant("first_of_the_list_wins", kills=("CLI-18", "CLI-18/longest"))
class FirstOfTheListWins(ReferenceChoice):
    def best(self, found: list[Match]) -> Match | None:
        return found[0] if found else None


@client_mutant("shortest_wins", kills="CLI-18/longest")
class ShortestWins(ReferenceChoice):
    def best(self, found: list[Match]) -> Match | None:
        return min(found, key=lambda match: (match.begin, match.end), default=None)


@client_mutant("shows_stop_token", kills="CLI-20/hidden")
class ShowsStopToken(ReferenceChoice):
    def hidden_ids(self) -> set[int]:
        return super().hidden_ids() - set(self.request.stop_conditions.stop_token_ids)


@client_mutant("hides_visible_stop_token", kills="CLI-20/visible")
class HidesVisibleStopToken(ReferenceChoice):
    def hidden_ids(self) -> set[int]:
        return super().hidden_ids() | set(self.request.stop_conditions.stop_token_ids_visible)


@client_mutant("shows_end_of_sequence", kills="CLI-20/eos")
class ShowsEndOfSequence(ReferenceChoice):
    def hidden_ids(self) -> set[int]:
        return super().hidden_ids() - self.eos_token_ids


@client_mutant("drops_end_of_sequence", kills=("CLI-20/eos", "CLI-24"))
class DropsEndOfSequence(ReferenceChoice):
    def take_token(self, token: int) -> None:
        if token not in self.eos_token_ids:
            super().take_token(token)


@client_mutant("ignore_eos_clears_stops", kills="CLI-21")
class IgnoreEosClearsStops(ReferenceChoice):
    def stop_strings(self) -> list[str]:
        return [] if self.request.stop_conditions.ignore_eos else super().stop_strings()


@client_mutant("one_decoder_for_all_choices", kills="CLI-22")
class OneDecoderForAllChoices(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        for choice in request.choices:
            choice._decoder = request.choices[0]._decoder
        return super().take(output, request)


@client_mutant("one_end_ends_all", kills="CLI-22")
class OneEndEndsAll(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        answer = super().take(output, request)
        if answer and answer.finish_reason == pb.FINISH_REASON_STOP:
            for choice in request.choices:
                choice.finish = choice.finish or pb.FINISH_REASON_STOP
        return answer


@client_mutant("stop_hides_engine_failure", kills="CLI-23")
class StopHidesEngineFailure(ReferenceChoice):
    def engine_wins(self, reason: int) -> bool:
        return False


@client_mutant("length_hides_stop", kills="CLI-23/length")
class LengthHidesStop(ReferenceChoice):
    def engine_wins(self, reason: int) -> bool:
        return super().engine_wins(reason) or (reason == pb.FINISH_REASON_LENGTH and len(self.token_ids) == 2)


@client_mutant("max_tokens_not_enforced", kills=("CLI-08", "CLI-38/max-tokens"))
class MaxTokensNotEnforced(ReferenceChoice):
    def is_full(self) -> bool:
        return False


@client_mutant("unknown_ids_have_text", kills="CLI-09")
class UnknownIdsHaveText(ReferenceChoice):
    def bytes_of(self, token: int) -> bytes:
        known = token in self.vocabulary.bytes_of or token in self.vocabulary.special
        return super().bytes_of(token) if known else f"<{token}>".encode()


@client_mutant("begins_without_the_prompt", kills="CLI-34")
class BeginsWithoutThePrompt(ReferenceChoice):
    def begin(self) -> None:
        return


@client_mutant("answers_are_texts_of_their_own", kills="CLI-34/first-space")
class AnswersAreTextsOfTheirOwn(ReferenceChoice):
    def decode(self, data: bytes) -> str:
        begins = self.vocabulary.strips_first_space and len(self.token_ids) == 1
        return super().decode(data).removeprefix(" " if begins else "")


@client_mutant("selected_values_of_tokens_that_are_cut", kills="CLI-15/selected")
class SelectedValuesOfTokensThatAreCut(ReferenceChoice):
    def rows(self, rows: pb.Logprobs, kept: int) -> pb.Logprobs:
        kept_rows = super().rows(rows, kept)
        kept_rows.selected_logprobs[:] = rows.selected_logprobs
        return kept_rows


@client_mutant("alternatives_are_cut_like_rows", kills="CLI-15/alternatives")
class AlternativesAreCutLikeRows(ReferenceChoice):
    """One for each token that is kept, however many a row has."""

    def rows(self, rows: pb.Logprobs, kept: int) -> pb.Logprobs:
        kept_rows = super().rows(rows, kept)
        del kept_rows.top_token_ids[kept:]
        del kept_rows.top_logprobs[kept:]
        return kept_rows


@client_mutant("sum_counts_tokens_that_are_cut", kills="CLI-15/sum")
class SumCountsTokensThatAreCut(ReferenceChoice):
    def sum_so_far(self, output: pb.LLMEngineOutput) -> float:
        return output.cum_log_probs
