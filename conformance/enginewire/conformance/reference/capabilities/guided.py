"""Guided decoding of the reference: tokens that the guide does not allow have no chance."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.reference.capabilities import grammar
from enginewire.conformance.reference.capabilities.tokenizer import Tokenizer
from enginewire.conformance.reference.generation.choices import GOES_ON, Ending
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.v1.json_text import MAX_BYTES

FIELD: Final = "sampling_options.guided_decoding"

MODES: Final = {
    "json_schema": pb.GUIDED_MODE_JSON_SCHEMA,
    "regex": pb.GUIDED_MODE_REGEX,
    "choice": pb.GUIDED_MODE_CHOICE,
}


class Guided(Tokenizer):
    """Follows guides."""

    def check_lists(self, request: pb.PreprocessedRequest) -> None:
        """Guides are compiled before acceptance."""
        super().check_lists(request)
        options = request.sampling_options
        if not options.HasField("guided_decoding"):
            return
        kind = options.guided_decoding.WhichOneof("guide") or ""
        if not kind:
            raise invalid(FIELD, "has no guide", "", "one of them")
        if MODES.get(kind) not in self.config.capabilities.guided_modes:
            message = f"{FIELD}.{kind}: is not offered here"
            raise Refusal(pb.ERROR_REASON_UNSUPPORTED, message, field=f"{FIELD}.{kind}")
        if (size := self.guide_size(options.guided_decoding, kind)) > MAX_BYTES:
            raise invalid(f"{FIELD}.{kind}", "is too large", size, f"at most {MAX_BYTES}")
        self.check_guide(options.guided_decoding, kind)

    def guide_size(self, guided: pb.GuidedDecoding, kind: str) -> int:
        """Bytes of its text, or of all that there are to choose from."""
        texts = guided.choice.choices if kind == "choice" else [getattr(guided, kind)]
        return sum(map(self.size, texts))

    def check_guide(self, guided: pb.GuidedDecoding, kind: str) -> None:
        """Refuse a guide that is not valid."""
        try:
            self.compiled(guided)
        except ValueError as error:
            raise invalid(f"{FIELD}.{kind}", "is not valid", "", str(error)) from None

    def compiled(self, guided: pb.GuidedDecoding) -> grammar.Guide:
        """The guide. Raises ValueError."""
        kind = guided.WhichOneof("guide")
        if kind == "choice":
            return grammar.choice(tuple(guided.choice.choices))
        return grammar.regex(guided.regex) if kind == "regex" else grammar.json_schema(guided.json_schema)

    def guide(self, choice: Choice) -> grammar.Guide | None:
        """What a choice has to follow."""
        options = choice.job.request.sampling_options
        return self.compiled(options.guided_decoding) if options.HasField("guided_decoding") else None

    def text_of(self, tokens: Iterable[int]) -> str:
        """Their text."""
        return "".join(map(self.token_text, tokens))

    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        """The guide's mask is one more."""
        super().apply_masks(choice, logits)
        if guide := self.guide(choice):
            allowed = self.allowed(choice, guide)
            for token in range(len(logits)):
                if token not in allowed:
                    logits[token] = -math.inf

    def allowed(self, choice: Choice, guide: grammar.Guide) -> set[int]:
        """The tokens that may come next."""
        text, ends = self.text_of(choice.tokens), self.ends(choice)
        allowed = {ord(character) for character in guide.following(text)} - ends
        return allowed | ends if guide.is_complete(text) else allowed

    def ends(self, choice: Choice) -> set[int]:
        """Ids that end a choice, whatever the request ignores."""
        request = choice.job.request
        return {*self.system_stops(request), *self.config.eos_token_ids, *self.caller_stops(request)}

    def ending(self, choice: Choice, token: int) -> Ending:
        """A guided choice ends where its text is complete, even when it should go on."""
        ending = super().ending(choice, token)
        is_over = self.guide(choice) is not None and token in self.ends(choice)
        if is_over and ending[0] in (GOES_ON[0], pb.FINISH_REASON_LENGTH):
            return pb.FINISH_REASON_EOS, None
        return ending
