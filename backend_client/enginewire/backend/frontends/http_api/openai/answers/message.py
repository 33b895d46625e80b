"""The message of a chat completion, whole or the part of it that is new, as JSON fields.

Sans-IO. Knows nothing about choices.
"""

from __future__ import annotations

from collections.abc import Iterable

from enginewire.backend.parsing.delta import CallDelta, Delta


def whole_message(delta: Delta, *, with_thinking: bool) -> dict[str, object]:
    """A message that has ended. Its content is null where it has calls and nothing else."""
    message: dict[str, object] = {"role": "assistant", "content": delta.text, "refusal": None}
    if delta.calls:
        message["content"] = delta.text or None
        message["tool_calls"] = [whole_call(call) for call in delta.calls]
    return message | thinking_fields(delta.thinking or None) if with_thinking else message


def message_piece(delta: Delta, *, is_first: bool) -> dict[str, object]:
    """What is new in a message."""
    piece: dict[str, object] = {"role": "assistant"} if is_first else {}
    if delta.text or (is_first and not delta):
        piece["content"] = delta.text
    elif is_first:
        piece["content"] = None
    if delta.thinking:
        piece |= thinking_fields(delta.thinking)
    if delta.calls:
        piece["tool_calls"] = list(call_pieces(delta.calls))
    return piece


def thinking_fields(text: str | None) -> dict[str, object]:
    """Under the name that clients know from DeepSeek, and under vLLM's younger one."""
    return {"reasoning_content": text, "reasoning": text}


def whole_call(call: CallDelta) -> dict[str, object]:
    """A call that has ended."""
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def call_pieces(calls: Iterable[CallDelta]) -> Iterable[dict[str, object]]:
    """What is new in each call; its name comes first, and once."""
    for call in calls:
        if call.id:
            yield {"index": call.index, **whole_call(call)}
        else:
            yield {"index": call.index, "function": {"arguments": call.arguments}}
