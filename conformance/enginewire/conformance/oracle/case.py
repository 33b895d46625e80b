"""One drawn case: a greedy request with some mix of options. Knows nothing about what has to come of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from enginewire import v1 as pb
from enginewire.conformance.session.context import Greedy
from enginewire.conformance.session.requests import Value

LISTS = ("eos_token_ids", "stop_token_ids_hidden", "stop_token_ids", "stop_token_ids_visible")
"""The fields with ids that end a choice: two of the system, then two of the caller."""

LOG_PROBS = -0.75
"""What is handed in as the sum of a first choice, and twice that for the second: no two have the same."""

ATTEMPTS = 4
"""How often a request may have been tried before; that says nothing about its answer."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where nobody wants a request any more: when so many `tokens` came, or could have if it `is_late`."""

    tokens: int
    is_late: bool = False

    @property
    def described(self) -> str:
        """In a few words."""
        return f"{'late' if self.is_late else 'left'} after {self.tokens} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is asked for, and how. A field at its default is not in the request, except `max_tokens`."""

    max_tokens: int
    prompt: int = 0
    """Which of the greedy runs it repeats."""
    min_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids_hidden: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_token_ids_visible: tuple[int, ...] = ()
    ignore_eos: bool = False
    stream_interval: int = 0
    n: int = 1
    resumed: tuple[int, ...] = ()
    """Tokens handed in with `resume`, for each choice from 0 on."""
    finished: tuple[int, ...] = ()
    """Those of these choices that are handed in as `finished`."""
    multiplexed: bool = False
    is_first: bool = False
    """Nothing of its prompt is cached: it has a salt of its own."""
    together: bool = False
    """Sent at the same time as others, not alone."""
    beyond: int = 0
    """Tokens that are asked for beyond `max_tokens`, which is all that fits the window; -1: no number is."""

    @property
    def options(self) -> dict[str, object]:
        """The fields that are not at their default."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return {name: value for name, (value, usual) in values.items() if value != usual}

    @property
    def described(self) -> str:
        """The options in one line."""
        parts = (name if value is True else f"{name} {_shown(value)}" for name, value in self.options.items())
        return ", ".join(parts)

    def changed(self, name: str, value: object) -> Case:
        """A copy with another value of one field."""
        return replace(self, **{name: value})  # type: ignore[arg-type]  # the name is one of ours

    def delivered(self, index: int) -> int:
        """How many tokens of a choice are handed in."""
        return self.resumed[index] if index < len(self.resumed) else 0

    @property
    def live(self) -> list[int]:
        """The choices of which something has to come."""
        return [index for index in range(self.n) if index not in self.finished]

    def changes(self, run: Greedy, salt: str) -> dict[str, Value]:
        """What it changes in a good request; `salt` keeps its prompt apart when it is to be a first one."""
        sent = ("max_tokens", "min_tokens", *LISTS, "stream_interval", "n")
        changes: dict[str, Value] = {name: self.options[name] for name in sent if name in self.options}
        if self.resumed:
            handed = [
                pb.ResumedChoice(
                    index=index,
                    generated_token_ids=run.of(index)[:count],
                    finished=index in self.finished,
                    cum_log_probs=LOG_PROBS * (index + 1),
                )
                for index, count in enumerate(self.resumed)
            ]
            changes["resume"] = pb.Resume(choices=handed, attempt=1 + sum(self.resumed) % ATTEMPTS)
        if self.is_first:
            changes["cache_salt"] = salt
        return {"token_ids": run.prompt, "ignore_eos": self.ignore_eos, **changes}

    @property
    def asked_for(self) -> int | None:
        """The `max_tokens` of the request."""
        return None if self.beyond < 0 else self.max_tokens + self.beyond


def _shown(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
