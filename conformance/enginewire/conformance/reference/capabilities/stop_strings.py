"""Text of the reference: what an engine adds that detokenizes and finds stop strings itself."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.reference.capabilities.guided import Guided
from enginewire.conformance.reference.generation.choices import GOES_ON, Ending
from enginewire.conformance.reference.generation.job import Choice


class StopStrings(Guided):
    """Adds text to outputs, and holds back what may become a stop string."""

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        """With the text of the token."""
        if not self.allows("stop_strings"):
            return super().advance(choice)
        # Without stop strings nothing is held back: long answers must not cost the square of their length.
        shown = self.shown(choice) if self.stops(choice) else ""
        output = super().advance(choice)
        output.tokens.extend(map(self.token_text, output.token_ids))
        output.text = self.new_text(choice, output, shown)
        return output

    def new_text(self, choice: Choice, output: pb.LLMEngineOutput, shown: str) -> str:
        """What an output adds to what was shown."""
        if not self.stops(choice):
            return "" if self.is_hidden(choice, output) else self.text_of(output.token_ids)
        whole = self.last_shown(choice, output) if output.finish_reason else self.shown(choice)
        return whole.removeprefix(shown)

    def cancelled(self, choice: Choice) -> pb.LLMEngineOutput:
        """With the text that was held back."""
        output = super().cancelled(choice)
        if self.allows("stop_strings") and self.stops(choice):
            output.text = self.text_of(choice.tokens).removeprefix(self.shown(choice))
        return output

    def stops(self, choice: Choice) -> list[str]:
        """The caller's stop strings."""
        return list(choice.job.request.stop_conditions.stop)

    def shown(self, choice: Choice) -> str:
        """The text that cannot become part of a stop string any more."""
        text, stops = self.text_of(choice.tokens), self.stops(choice)
        longest = max(map(len, stops), default=0)
        for place in range(max(len(text) - longest, 0), len(text)):
            if any(stop.startswith(text[place:]) for stop in stops):
                return text[:place]
        return text

    def last_shown(self, choice: Choice, output: pb.LLMEngineOutput) -> str:
        """All that is shown of a choice that ends with this output."""
        if output.stop_match.text:
            return self.cut(choice, output.stop_match.text)
        return self.text_of(choice.tokens[:-1] if self.is_hidden(choice, output) else choice.tokens)

    def is_hidden(self, choice: Choice, output: pb.LLMEngineOutput) -> bool:
        """True when the output ends with an id that shows no text."""
        if output.finish_reason == pb.FINISH_REASON_EOS:
            return True
        visible = choice.job.request.stop_conditions.stop_token_ids_visible
        return output.stop_match.HasField("token_id") and output.stop_match.token_id not in visible

    def cut(self, choice: Choice, stop: str) -> str:
        """The text up to its stop string."""
        text, options = self.text_of(choice.tokens), choice.job.request.sampling_options
        begin = text.index(stop, max(self.searched_from(choice) - len(stop) + 1, 0))
        return text[: begin + len(stop) * options.include_stop_str_in_output]

    def stopped(self, choice: Choice, token: int) -> Ending:
        """Stop strings come after stop ids."""
        ending = super().stopped(choice, token)
        if ending == GOES_ON and (stop := self.found(choice)):
            return pb.FINISH_REASON_STOP, pb.StopMatch(text=stop)
        return ending

    def found(self, choice: Choice) -> str:
        """The stop string that begins first, the longest of those; empty without."""
        if not self.stops(choice):
            return ""
        text, begin = self.text_of(choice.tokens), self.searched_from(choice)
        places = [
            (text.find(stop, max(begin - len(stop) + 1, 0)), -len(stop), stop) for stop in self.stops(choice)
        ]
        return min((place for place in places if place[0] >= 0), default=(0, 0, ""))[2]

    def searched_from(self, choice: Choice) -> int:
        """Stop strings that end before this place of the text came below min_tokens."""
        least = choice.job.request.stop_conditions.min_tokens
        return len(self.text_of(choice.tokens[: max(least - 1, 0)]))
