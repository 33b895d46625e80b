from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, strategies as st

from enginewire.backend.bench.openai_target import body_of, message_of, piece_of
from enginewire.backend.bench.options import BenchOptions
from enginewire.backend.bench.timeline import Delivery, Failed, Used
from enginewire.backend.bench.workload import Job

CHAT = BenchOptions(api="chat", target="http://x")
COMPLETIONS = BenchOptions(api="completions", target="http://x", ignore_eos=False)
# Small ones: their kind decides, and large ones take most of the time to draw.
ANY_JSON = st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=8)


def event(**fields: object) -> str:
    return f"data: {json.dumps(fields)}"


@pytest.mark.parametrize(
    ("line", "piece"),
    [
        ("", None),
        (": ping", None),
        ("event: x", None),
        ("data: [DONE]", None),
        (event(choices=[{"delta": {"role": "assistant", "content": ""}}]), None),
        (event(choices=[{"delta": {}, "finish_reason": "stop"}], usage=None), None),
        (event(choices=[{"delta": {"content": "x"}}]), Delivery(None)),
        (event(choices=[{"text": "x"}], usage=None), Delivery(None)),
        (event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4}), Used(3, 4)),
    ],
)
def test_events_tell_when_text_came_and_how_many_tokens_it_was(line: str, piece: object) -> None:
    assert piece_of(line) == piece


@given(st.text() | ANY_JSON.map(json.dumps))
def test_an_event_of_any_other_form_is_a_failure(data: str) -> None:
    with contextlib.suppress(Failed):
        assert piece_of(f"data: {data}") is None


def test_an_error_in_a_stream_is_told() -> None:
    with pytest.raises(Failed, match="the engine is gone"):
        piece_of(event(error={"message": "the engine is gone"}))


def test_each_endpoint_gets_the_prompts_it_can_take() -> None:
    chat = body_of(Job(5, text="hi"), CHAT, "m")
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    assert chat["ignore_eos"] is True
    assert body_of(Job(5, token_ids=(1, 2)), COMPLETIONS, "m")["prompt"] == [1, 2]
    assert "ignore_eos" not in body_of(Job(5, text="hi"), COMPLETIONS, "m")
    with pytest.raises(Failed, match="token ids"):
        body_of(Job(5, token_ids=(1,)), CHAT, "m")
    with pytest.raises(Failed, match="messages"):
        body_of(Job(5, messages=(("user", "hi"),)), COMPLETIONS, "m")


@pytest.mark.parametrize("data", [b"\xff", b"{}", b"[]", b'{"error": "x"}', b'{"error": {"message": "no"}}'])
def test_whatever_an_error_body_is_it_becomes_one_short_line(data: bytes) -> None:
    assert "\n" not in message_of(data * 200)
    assert len(message_of(data * 200)) <= 200
