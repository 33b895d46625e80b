"""What a request to this engine may ask for: sizes, counts and abilities, and how it is refused.

Knows nothing about messages, torch or queues.
"""

from __future__ import annotations

from dataclasses import dataclass

from enginewire.server.failures import InvalidRequest
from enginewire.server.handoff.options import Role
from enginewire.torch_engine.requests.thinking import ThinkingTokens

PROMPT_LOGPROBS_BYTES = 7 * 2**19
"""Those of a prompt travel in one message, which stays under the 4 MiB that clients of gRPC accept."""
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request may ask for. `kv_capacity` is how many tokens the whole cache holds.

    With `takes_any_length` a sequence gives back what lies behind a sliding window and may be longer.
    Without `prefix_caching` no request reads or writes the prefix cache, and a model without `thinking`
    tokens does not think. Prompts may be embeddings of `embedding_width` numbers per token, if it is set.
    """

    vocab_size: int
    context_length: int
    kv_capacity: int
    takes_any_length: bool = False
    max_n: int = 64
    max_logprobs: int = 64
    prefix_caching: bool = True
    role: Role = "aggregated"
    thinking: ThinkingTokens | None = None
    embedding_width: int | None = None

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that leaves room for a token."""
        return min(self.context_length - 1, self.max_sequence_tokens(is_whole=self.role == "prefill"))

    def max_sequence_tokens(self, *, is_whole: bool) -> int:
        """How many tokens of one sequence the cache can take; all at the same time, if it `is_whole`."""
        return self.context_length if self.takes_any_length and not is_whole else self.kv_capacity

    @property
    def max_prompt_logprobs(self) -> int:
        """Alternatives per token that fit into one message for the longest prompt; below 0: not even none."""
        id_bytes = -(-self.vocab_size.bit_length() // 7)  # of a token id or a rank as a varint
        room = PROMPT_LOGPROBS_BYTES // max(self.max_prompt_tokens, 1)
        most = room // (id_bytes + FLOAT_BYTES) - 1  # the token itself has a rank and a value, too
        return min(most, self.max_logprobs, self.vocab_size)


def check(field: str, passed: bool, rule: str) -> None:
    """Raise InvalidRequest that says the rule, unless the field `passed` it."""
    if not passed:
        raise InvalidRequest(f"{field}: {rule}", field=field)
