"""An answer of one choice that is told as typed events, however an API calls them. Sans-IO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.prompts.streams import Placed

Event = TypeVar("Event")


class TypedAnswer(ABC, Generic[Event]):
    """Outputs in, events out; what an answer in one piece has is what its events have told."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._usage = pb.CompletionUsage()
        self._is_begun = False

    @abstractmethod
    def _first(self) -> Sequence[Event]:
        """The events before the first output."""

    @abstractmethod
    def _news(self) -> Iterator[Event]:
        """The events that the last output makes."""

    @abstractmethod
    def _written(self, events: Iterable[Event]) -> bytes:
        """Server-sent events."""

    def add(self, batch: Sequence[Placed]) -> list[Event]:
        """Take outputs; the events they make."""
        events: list[Event] = []
        for _, output in batch:
            self._choice.add(output)
            # One after the other, so that what is told does not depend on what comes together.
            events += self._news()
            if output.completion_usage is not None:
                self._usage = output.completion_usage
        return events

    def events(self, batch: Sequence[Placed]) -> bytes:
        """Take outputs; the events they make, behind the first ones."""
        first = [] if self._is_begun else self._first()
        self._is_begun = True
        return self._written([*first, *self.add(batch)])
