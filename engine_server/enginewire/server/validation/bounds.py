"""The numbers that one engine measures requests by: what it advertised, and the contract's bounds elsewhere.

Knows nothing about requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES, UNBOUNDED, Rule

CONTRACT_LIMITS = pb.Limits(**{rule.limit: rule.bound for rule in FIELD_RULES.values() if rule.limit})
"""Used where an engine sets no limit of its own, so that every list a caller can send is bounded."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The sizes and limits of one engine."""

    vocab_size: int
    context_length: int
    max_prompt_tokens: int
    limits: pb.Limits

    @classmethod
    def of(cls, config: pb.EngineConfig) -> Self:
        """Those that an engine advertised."""
        limits = config.limits
        return cls(
            vocab_size=config.vocab_size,
            context_length=config.context_length if config.HasField("context_length") else UNBOUNDED,
            max_prompt_tokens=limits.max_prompt_tokens if limits.HasField("max_prompt_tokens") else UNBOUNDED,
            limits=limits,
        )

    def most(self, rule: Rule) -> int:
        """The largest number, or count of entries, that a field may have here."""
        most = rule.most(self.limits)
        return min(most, self.vocab_size) if rule.token_count else most


def effective_limits(config: pb.EngineConfig) -> pb.Limits:
    """What the engine advertised, and the contract's limits where it said nothing."""
    limits = pb.Limits()
    limits.CopyFrom(CONTRACT_LIMITS)
    limits.MergeFrom(config.limits)
    return limits
