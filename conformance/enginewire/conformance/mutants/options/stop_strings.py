"""Servers that miss stop strings, or cut them elsewhere."""

from __future__ import annotations

from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.server import Reference


@mutant("stop_string_per_token", kills="STP-06")
class StopStringPerToken(Reference):
    def found(self, choice: Choice) -> str:
        last = self.text_of(choice.tokens[-1:])
        return next((stop for stop in self.stops(choice) if stop in last), "")


@mutant("stop_string_prefix_leaks", kills="STP-06")
class StopStringPrefixLeaks(Reference):
    def shown(self, choice: Choice) -> str:
        return self.text_of(choice.tokens)


@mutant("stop_string_always_shown", kills="STP-06")
class StopStringAlwaysShown(Reference):
    def cut(self, choice: Choice, stop: str) -> str:
        choice.job.request.sampling_options.include_stop_str_in_output = True
        return super().cut(choice, stop)
