"""Backends whose text is wrong under a second condition only, which no simple check sets up."""

from __future__ import annotations

import unicodedata

from enginewire import v1 as pb
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.text import FINAL, Match, ReferenceChoice


@client_mutant("first_complete_stop_wins", kills="CLI-18/drawn")
class FirstCompleteStopWins(ReferenceChoice):
    def is_open(self, match: Match) -> bool:
        return False


@client_mutant("skipped_token_stops_below_min_tokens", kills="CLI-02/drawn")
class SkippedTokenStopsBelowMinTokens(ReferenceChoice):
    def is_special_stop(self, token: int) -> bool:
        return self.skips() and self.vocabulary.special.get(token) in self.stop_strings()


@client_mutant("max_tokens_loses_unfinished_bytes", kills="CLI-05/drawn")
class MaxTokensLosesUnfinishedBytes(ReferenceChoice):
    def flush(self) -> str:
        return "" if self.is_full() else super().flush()


@client_mutant("waits_for_a_surrogate", kills="CLI-17/drawn")
class WaitsForASurrogate(ReferenceChoice):
    def is_lost(self, held: bytes) -> bool:
        return False


@client_mutant("system_stop_token_is_shown", kills="CLI-20/drawn")
class SystemStopTokenIsShown(ReferenceChoice):
    def hidden_ids(self) -> set[int]:
        return super().hidden_ids() - set(self.request.stop_conditions.stop_token_ids_hidden)


@client_mutant("skipped_token_breaks_a_character", kills=("CLI-03/drawn", "CLI-05/drawn"))
class SkippedTokenBreaksACharacter(ReferenceChoice):
    def take_token(self, token: int) -> None:
        if token in self.vocabulary.special and self.skips():
            self.text += self.flush()
        super().take_token(token)


@client_mutant("character_of_the_prompt_is_broken", kills=("CLI-03/drawn", "CLI-34/drawn"))
class CharacterOfThePromptIsBroken(ReferenceChoice):
    def begin(self) -> None:
        super().begin()
        if self.vocabulary.strips_first_space and self.request.token_ids[-1] < 256:
            self.flush()


@client_mutant("stops_across_the_prompt", kills="CLI-34/drawn")
class StopsAcrossThePrompt(ReferenceChoice):
    def find(self, before: int) -> Match | None:
        if match := super().find(before):
            return match
        prompt = b"".join(self.vocabulary.bytes_of.get(token, b"") for token in self.request.token_ids)
        end = prompt.decode(errors="ignore")[-1:]
        found = [stop for stop in self.stop_strings() if len(stop) > 1 and (end + self.text).startswith(stop)]
        return Match(0, len(found[0]) - 1, found[0]) if found and not before else None


@client_mutant("one_visible_stop_only", kills="CLI-18/drawn")
class OneVisibleStopOnly(ReferenceChoice):
    def shown_until(self, match: Match) -> int:
        return match.begin if match.stop != self.stop_strings()[0] else super().shown_until(match)


@client_mutant("min_tokens_counts_the_message", kills="CLI-07/drawn")
class MinTokensCountsTheMessage(ReferenceChoice):
    in_message = 0

    def take(self, output: pb.LLMEngineOutput) -> pb.BackendOutput:
        self.in_message = len(self.token_ids) + len(output.token_ids)
        return super().take(output)

    def is_armed(self) -> bool:
        return self.in_message >= self.request.stop_conditions.min_tokens


@client_mutant("two_stops_at_most", kills="CLI-18/drawn")
class TwoStopsAtMost(ReferenceChoice):
    def stop_strings(self) -> list[str]:
        return super().stop_strings()[:2]


@client_mutant("stops_are_normalized", kills="CLI-02/drawn")
class StopsAreNormalized(ReferenceChoice):
    def stop_strings(self) -> list[str]:
        return [unicodedata.normalize("NFC", stop) for stop in super().stop_strings()]


@client_mutant("stops_are_stripped", kills="CLI-02/drawn")
class StopsAreStripped(ReferenceChoice):
    def stop_strings(self) -> list[str]:
        return [stop.strip() or stop for stop in super().stop_strings()]


@client_mutant("space_behind_a_special_token_is_lost", kills="CLI-05/drawn")
class SpaceBehindASpecialTokenIsLost(ReferenceChoice):
    def decode(self, data: bytes) -> str:
        before = self.token_ids[-2] if len(self.token_ids) > 1 else -1
        begins = self.vocabulary.strips_first_space and before in self.vocabulary.special
        return super().decode(data).removeprefix(" " if begins else "")


@client_mutant("rows_of_one_choice_only", kills="CLI-15/drawn")
class RowsOfOneChoiceOnly(ReferenceChoice):
    def rows(self, rows: pb.Logprobs, kept: int) -> pb.Logprobs:
        return super().rows(rows, 0 if self.index else kept)


@client_mutant("holds_all_below_min_tokens", kills="CLI-17/drawn")
class HoldsAllBelowMinTokens(ReferenceChoice):
    def held(self) -> int:
        return super().held() if self.is_armed() else len(self.text) - self.shown


@client_mutant("content_filter_is_overruled", kills="CLI-23/drawn")
class ContentFilterIsOverruled(ReferenceChoice):
    def engine_wins(self, reason: int) -> bool:
        return reason in FINAL and reason != pb.FINISH_REASON_CONTENT_FILTER


@client_mutant("ignored_eos_is_hidden", kills="CLI-21/drawn")
class IgnoredEosIsHidden(ReferenceChoice):
    def hidden_ids(self) -> set[int]:
        return super().hidden_ids() | self.eos_token_ids


@client_mutant("stops_hide_special_tokens", kills="CLI-02/drawn")
class StopsHideSpecialTokens(ReferenceChoice):
    def skips(self) -> bool:
        return super().skips() or bool(self.stop_strings())


@client_mutant("empty_terminal_loses_withheld_text", kills="CLI-02/drawn")
class EmptyTerminalLosesWithheldText(ReferenceChoice):
    def take(self, output: pb.LLMEngineOutput) -> pb.BackendOutput:
        answer = super().take(output)
        if not output.token_ids and self.stop_strings():
            answer.ClearField("text")
        return answer


@client_mutant("visible_stop_token_is_not_named", kills="CLI-20/drawn")
class VisibleStopTokenIsNotNamed(ReferenceChoice):
    def describe_finish(self, answer: pb.BackendOutput, output: pb.LLMEngineOutput) -> None:
        super().describe_finish(answer, output)
        if answer.stop_reason.token_id in self.request.stop_conditions.stop_token_ids_visible:
            answer.ClearField("stop_reason")


@client_mutant("visible_stop_shows_the_rest_of_its_token", kills=("CLI-04/drawn", "CLI-21/drawn"))
class VisibleStopShowsTheRestOfItsToken(ReferenceChoice):
    def shown_until(self, match: Match) -> int:
        is_visible = self.request.sampling_options.include_stop_str_in_output
        return len(self.text) if is_visible and len(self.token_ids) == 1 else super().shown_until(match)


@client_mutant("ignore_eos_overruns", kills="CLI-08/drawn")
class IgnoreEosOverruns(ReferenceChoice):
    def is_full(self) -> bool:
        is_wrong = self.request.stop_conditions.ignore_eos and not self.stop_strings()
        return super().is_full() and not is_wrong


@client_mutant("visible_stop_misses_the_floor", kills="CLI-19/drawn")
class VisibleStopMissesTheFloor(ReferenceChoice):
    def is_armed(self) -> bool:
        floor = self.request.stop_conditions.min_tokens
        is_visible = self.request.sampling_options.include_stop_str_in_output
        return super().is_armed() and not (is_visible and floor and len(self.token_ids) == floor)
