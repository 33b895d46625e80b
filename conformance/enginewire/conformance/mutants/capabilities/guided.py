"""Servers that follow no guide, half of one, or that of a neighbour."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError, Message

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities import grammar
from enginewire.conformance.reference.generation.choices import Ending
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings


def _kind(choice: Choice) -> str:
    return choice.job.request.sampling_options.guided_decoding.WhichOneof("guide") or ""


def _has_guide(request: pb.GenerateRequest) -> bool:
    return request.request.sampling_options.HasField("guided_decoding")


@mutant("guided_ignored", kills="GDE-01")
class GuidedIgnored(Reference):
    def guide(self, choice: Choice) -> grammar.Guide | None:
        return None if _kind(choice) == "json_schema" else super().guide(choice)


@mutant("regex_prefix_only", kills="GDE-02")
class RegexPrefixOnly(Reference):
    def guide(self, choice: Choice) -> grammar.Guide | None:
        guide = super().guide(choice)
        return grammar.Pattern(guide.sets[:2]) if isinstance(guide, grammar.Pattern) else guide


@mutant("one_choice_follows_the_regex", kills="GDE-02")
class OneChoiceFollowsTheRegex(Reference):
    """Those behind the first one are free."""

    def guide(self, choice: Choice) -> grammar.Guide | None:
        return None if _kind(choice) == "regex" and choice.index else super().guide(choice)


@mutant("guides_are_known_by_their_text", kills=("GDE-01/same-text", "GDE-02/same-text", "GDE-03/same-text"))
class GuidesAreKnownByTheirText(Reference):
    """Whichever kind they are of."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, grammar.Guide] = {}

    def compiled(self, guided: pb.GuidedDecoding) -> grammar.Guide:
        texts = guided.choice.choices
        text = guided.regex or guided.json_schema or (texts[0] if len(texts) == 1 else json.dumps([*texts]))
        guide = super().compiled(guided)
        return self._known.setdefault(text, guide)


@mutant("guides_are_known_by_their_beginning", kills=("GDE-01/same-beginning", "GDE-02/same-beginning"))
class GuidesAreKnownByTheirBeginning(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, grammar.Guide] = {}

    def compiled(self, guided: pb.GuidedDecoding) -> grammar.Guide:
        return self._known.setdefault(str(guided)[:1000], super().compiled(guided))


@mutant("inner_keywords_are_not_looked_at", kills="GDE-01/keywords")
class InnerKeywordsAreNotLookedAt(Reference):
    """Only those at the top of a schema."""

    def compiled(self, guided: pb.GuidedDecoding) -> grammar.Guide:
        schema = json.loads(guided.json_schema or "{}")
        if isinstance(schema, dict):
            for name, inner in schema.get("properties", {}).items():
                schema["properties"][name] = {key: inner[key] for key in inner if key in grammar.KEPT}
            guided = pb.GuidedDecoding(json_schema=json.dumps(schema)) if guided.json_schema else guided
        return super().compiled(guided)


@mutant("stop_ids_come_inside_a_match", kills="GDE-09")
class StopIdsComeInsideAMatch(Reference):
    def allowed(self, choice: Choice, guide: grammar.Guide) -> set[int]:
        following = {ord(character) for character in guide.following(self.text_of(choice.tokens))}
        return super().allowed(choice, guide) | following.intersection(self.caller_stops(choice.job.request))


@mutant("choice_ignored", kills="GDE-03")
class ChoiceIgnored(Reference):
    def guide(self, choice: Choice) -> grammar.Guide | None:
        return None if _kind(choice) == "choice" else super().guide(choice)


@mutant("bad_grammar_kills_engine", kills="GDE-04")
class BadGrammarKillsEngine(Reference):
    def check_guide(self, guided: pb.GuidedDecoding, kind: str) -> None:
        try:
            self.compiled(guided)
        except ValueError:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "the grammar engine failed") from None


@mutant("guide_accepted_unread", kills="GDE-04")
class GuideAcceptedUnread(Reference):
    def check_guide(self, guided: pb.GuidedDecoding, kind: str) -> None:
        pass

    def guide(self, choice: Choice) -> grammar.Guide | None:
        try:
            return super().guide(choice)
        except ValueError:
            return None


@mutant("first_guide_wins", kills="GDE-05")
class FirstGuideWins(Reference):
    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        message = super().parsed(request_class, payload)
        # Not for others: a large message has as many beginnings as bytes, and its server would stand still.
        if not isinstance(message, pb.GenerateRequest) or not _has_guide(message):
            return message
        for end in range(1, len(payload)):
            try:
                head = request_class.FromString(payload[:end])
            except DecodeError:
                continue
            if isinstance(head, pb.GenerateRequest) and _has_guide(head):
                return head
        return message


@mutant("guided_length_as_stop", kills="GDE-06")
class GuidedLengthAsStop(Reference):
    def ending(self, choice: Choice, token: int) -> Ending:
        reason, match = super().ending(choice, token)
        if _kind(choice) and reason == pb.FINISH_REASON_LENGTH:
            return pb.FINISH_REASON_STOP, pb.StopMatch(token_id=token)
        return reason, match


@mutant("mask_leaks", kills="GDE-07")
class MaskLeaks(Reference):
    def advance_job(self, job: Job) -> None:
        # Only there: requests of other checks run beside a guide as well.
        guides = map(self._own, self.running) if "GDE-07" in job.request_id else ()
        self._guide = next(filter(None, guides), None)
        super().advance_job(job)

    def _own(self, job: Job) -> grammar.Guide | None:
        return super().guide(job.choices[0])

    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        super().apply_masks(choice, logits)
        if self._guide and not _kind(choice):
            for token in range(48, 58):
                logits[token] += 100

    _guide: grammar.Guide | None = None


@mutant("serves_unlisted_guides", kills="ERR-17/guides")
class ServesUnlistedGuides(Reference):
    settings = replace(Settings(), guided_modes=(pb.GUIDED_MODE_REGEX,))

    def check_lists(self, request: pb.PreprocessedRequest) -> None:
        kind = request.sampling_options.guided_decoding.WhichOneof("guide")
        if kind not in ("json_schema", "choice", "json_object", "ebnf_grammar"):
            super().check_lists(request)

    def guide(self, choice: Choice) -> grammar.Guide | None:
        return super().guide(choice) if _kind(choice) == "regex" else None


@mutant("guides_that_end_too_soon_fail", kills="GDE-08")
class GuidesThatEndTooSoonFail(Reference):
    """Below a minimum that cannot be reached."""

    def ending(self, choice: Choice, token: int) -> Ending:
        is_over = self.guide(choice) is not None and token in self.ends(choice)
        if is_over and len(choice.tokens) < choice.job.request.stop_conditions.min_tokens:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "the grammar ended before min_tokens (fault 7b1e)")
        return super().ending(choice, token)


@mutant("grammars_begin_anew", kills="RES-01/guided")
class GrammarsBeginAnew(Reference):
    """What was handed in is prompt to them."""

    def allowed(self, choice: Choice, guide: grammar.Guide) -> set[int]:
        text, ends = self.text_of(choice.tokens[choice.handed_in :]), self.ends(choice)
        allowed = {ord(character) for character in guide.following(text)} - ends
        return allowed | ends if guide.is_complete(text) else allowed
