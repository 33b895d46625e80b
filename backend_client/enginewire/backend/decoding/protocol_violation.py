"""What a backend holds against an engine, and the checks that a single message can fail.

Sans-IO. Knows nothing about text; what an output has to be after those before it, `request_decoder` knows.
"""

from __future__ import annotations

from math import isfinite
from typing import Final

from enginewire import v1 as pb

MAX_UINT32: Final = (1 << 32) - 1


class ProtocolViolation(Exception):
    """The engine broke the contract; the message begins with `protocol violation:`."""

    def __init__(self, which: str) -> None:
        super().__init__(f"protocol violation: {which}")


def check_columns(message: pb.LLMEngineOutput) -> None:
    """Raise ProtocolViolation unless there is one row for each token of every column, and no text alone."""
    num_tokens = len(message.token_ids)
    rows = message.logprobs
    if message.HasField("logprobs"):
        wide = num_tokens * rows.top_n
        if len(rows.token_logprobs) != num_tokens or len(rows.token_ranks) not in (0, num_tokens):
            raise ProtocolViolation(f"{len(rows.token_logprobs)} logprobs for {num_tokens} tokens")
        if len(rows.top_token_ids) != wide or len(rows.top_logprobs) != wide:
            raise ProtocolViolation(f"alternatives that are not {num_tokens} rows of {rows.top_n}")
    prompt = message.prompt_logprobs.logprobs
    told = (
        *rows.token_logprobs,
        *rows.top_logprobs,
        *prompt.token_logprobs,
        *prompt.top_logprobs,
        message.cum_log_probs,
    )
    if not all(map(isfinite, told)):
        raise ProtocolViolation("a log-probability that is not a finite number")
    if message.tokens and len(message.tokens) != num_tokens:
        raise ProtocolViolation(f"{len(message.tokens)} token texts for {num_tokens} tokens")
    if message.HasField("text") and not num_tokens and not message.finish_reason:
        raise ProtocolViolation("text without tokens")


def check_usage(usage: pb.CompletionUsage, num_prompt_tokens: int | None, num_received: int) -> None:
    """Raise ProtocolViolation unless the engine counts what was asked, if that is known, and sent."""
    if usage.completion_tokens != num_received:
        raise ProtocolViolation(f"usage of {usage.completion_tokens} completion tokens, {num_received} sent")
    if num_prompt_tokens not in (None, usage.prompt_tokens):
        raise ProtocolViolation(
            f"usage of {usage.prompt_tokens} prompt tokens, {num_prompt_tokens} requested"
        )
    if usage.total_tokens != min(usage.prompt_tokens + usage.completion_tokens, MAX_UINT32):
        raise ProtocolViolation(f"usage total {usage.total_tokens} is not the sum")
