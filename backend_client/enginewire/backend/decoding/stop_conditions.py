"""When a choice ends, as values: the caller's conditions, checked, and what can trigger.

Knows nothing about text streams, tokenizers or the wire beyond the request message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_STOPS = 1024
MAX_STOP_CHARS = 16_384


class InvalidStopConditions(ValueError):
    """A condition that no decoder can honour. `field` is its path below the request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True, slots=True)
class StopConditions:
    """Everything that ends a choice. Counts are in output tokens of the choice.

    Raises InvalidStopConditions when constructed with a contradiction.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    stop_token_ids_visible: frozenset[int] = frozenset()
    stop_token_ids_hidden: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidStopConditions("stop_conditions.max_tokens", "must be at least 1")
        if self.min_tokens < 0:
            raise InvalidStopConditions("stop_conditions.min_tokens", "must not be negative")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidStopConditions(
                "stop_conditions.min_tokens", f"must not be above max_tokens ({self.max_tokens})"
            )
        check_stops(self.stop)

    @property
    def system_token_ids(self) -> frozenset[int]:
        """Ids that end a choice with EOS and show no text; none with `ignore_eos`."""
        return frozenset() if self.ignore_eos else self.eos_token_ids | self.stop_token_ids_hidden


def check_stops(stops: Iterable[str]) -> None:
    """Raise InvalidStopConditions for an empty stop string and for too much of them."""
    num_stops = num_characters = 0
    for place, stop in enumerate(stops):
        if not stop:
            raise InvalidStopConditions(f"stop_conditions.stop[{place}]", "must not be empty")
        num_stops, num_characters = num_stops + 1, num_characters + len(stop)
    if num_stops > MAX_STOPS:
        raise InvalidStopConditions("stop_conditions.stop", f"at most {MAX_STOPS} strings")
    if num_characters > MAX_STOP_CHARS:
        raise InvalidStopConditions("stop_conditions.stop", f"at most {MAX_STOP_CHARS} characters in all")


@dataclass(frozen=True, slots=True)
class MaxTokensLimit:
    """max_tokens were generated."""


@dataclass(frozen=True, slots=True)
class EosTokenDetected:
    """The model or the system ended the choice with this token."""

    token_id: int


@dataclass(frozen=True, slots=True)
class HiddenStopTokenDetected:
    """A stop token id of the caller; its text is not shown."""

    token_id: int


@dataclass(frozen=True, slots=True)
class VisibleStopTokenDetected:
    """A stop token id of the caller; its text is shown."""

    token_id: int


@dataclass(frozen=True, slots=True)
class HiddenStopSequenceDetected:
    """A stop string of the caller, cut out of the text."""

    stop: str


@dataclass(frozen=True, slots=True)
class VisibleStopSequenceDetected:
    """A stop string of the caller, shown at the end of the text."""

    stop: str


StopTrigger = (
    MaxTokensLimit
    | EosTokenDetected
    | HiddenStopTokenDetected
    | VisibleStopTokenDetected
    | HiddenStopSequenceDetected
    | VisibleStopSequenceDetected
)
