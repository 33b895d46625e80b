"""The lists of a request: the tokens that it allows, and the words that it forbids.

vLLM chooses some token even where they leave none, so what it has chosen is held against them here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest


@dataclass(frozen=True, slots=True)
class Lists:
    """Without `allowed` ids all are. `starts` of forbidden words are by their last ids."""

    allowed: frozenset[int]
    starts: Mapping[int, Sequence[tuple[int, ...]]]

    @classmethod
    def of(cls, options: pb.SamplingOptions) -> Lists | None:
        """None for a request that has neither."""
        starts: dict[int, list[tuple[int, ...]]] = {}
        for word in options.bad_words_token_ids:
            *start, last = word.token_ids
            starts.setdefault(last, []).append(tuple(start))
        allowed = frozenset(options.allowed_token_ids)
        return cls(allowed, starts) if allowed or starts else None

    @property
    def leave_nothing(self) -> bool:
        """Not even a first token."""
        return bool(self.allowed) and all(self.forbid([], token_id) for token_id in self.allowed)

    def forbid(self, output: Sequence[int], token_id: int) -> bool:
        """Whether this token may not come behind that output."""
        if self.allowed and token_id not in self.allowed:
            return True
        return any(
            tuple(output[max(len(output) - len(start), 0) :]) == start
            for start in self.starts.get(token_id, ())
        )

    def nothing_left(self) -> InvalidRequest:
        """The failure of a request for which a token was chosen that they forbid."""
        field = f"sampling_options.{'allowed_token_ids' if self.allowed else 'bad_words_token_ids'}"
        return InvalidRequest(f"{field}: the lists of the request leave no token to choose", field=field)
