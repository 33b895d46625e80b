from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import Annotated, BackendOutput, Failure
from enginewire.backend.frontends.json_items import InvalidJson, item_to_json, request_from_json

KEYS = st.sampled_from(
    [
        "id",
        "prompt",
        "messages",
        "token_ids",
        "stop_conditions",
        "sampling_options",
        "seed",
        "role",
        "content",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


def read(**fields: object) -> pb.BackendServiceGenerateRequest:
    return request_from_json(json.dumps(fields)).asked


def test_text_a_conversation_and_token_ids_are_prompts() -> None:
    assert read(prompt="Hé 🎉").text == "Hé 🎉"
    assert read(messages=[{"role": "user", "content": "x"}]).chat.messages[0].content == "x"
    ids = read(token_ids=[1, 2])
    assert (ids.token_ids, list(ids.request.token_ids)) == (True, [1, 2])


def test_every_other_key_is_a_field_of_the_request_in_either_spelling() -> None:
    request = read(
        prompt="x",
        stop_conditions={"max_tokens": 3, "stop": ["a"]},
        samplingOptions={"seed": "18446744073709551615"},
    ).request
    assert request.stop_conditions.max_tokens == 3
    assert list(request.stop_conditions.stop) == ["a"]
    assert request.sampling_options.seed == 2**64 - 1


@pytest.mark.parametrize("request_id", ["a", "", 7, -1])
def test_the_id_is_the_callers_own(request_id: str | int) -> None:
    assert request_from_json(json.dumps({"id": request_id, "prompt": "x"})).id == request_id


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", ""),
        ("{", ""),
        ("[]", ""),
        ("7", ""),
        ('{"prompt": NaN}', ""),
        ("9" * 5000, ""),
        ("[" * 100_000, ""),
        ('{"prompt": "x", "id": 1.5}', "id"),
        ('{"prompt": "x", "id": true}', "id"),
        ('{"id": 1}', "prompt"),
        ('{"prompt": "x", "token_ids": [1]}', "prompt"),
        ('{"prompt": ["x"]}', "prompt"),
        ('{"prompt": "\\ud800"}', "prompt"),
        ('{"messages": [{"role": 1}]}', "messages"),
        ('{"messages": "x"}', "messages"),
        ('{"prompt": "x", "unknown": 1}', "request"),
        ('{"prompt": "x", "sampling_options": {"temperature": "hot"}}', "request"),
        ('{"token_ids": [-1]}', "request"),
    ],
)
def test_what_is_no_request_is_refused_with_its_field(text: str, field: str) -> None:
    with pytest.raises(InvalidJson) as refusal:
        request_from_json(text)
    assert refusal.value.field == field
    assert "\n" not in str(refusal.value)


def test_a_refusal_knows_the_id_when_there_was_one() -> None:
    with pytest.raises(InvalidJson) as refusal:
        request_from_json('{"id": "mine"}')
    assert refusal.value.request_id == "mine"


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_whatever_the_json_says_it_is_a_request_or_refused(fields: dict[str, object]) -> None:
    with contextlib.suppress(InvalidJson):
        request_from_json(json.dumps(fields))


@given(st.binary(max_size=64))
def test_whatever_the_bytes_are_they_are_a_request_or_refused(data: bytes) -> None:
    with pytest.raises(InvalidJson):
        request_from_json(data)


def test_an_output_has_the_names_of_the_contract() -> None:
    output = BackendOutput(
        token_ids=[1], tokens=["a"], text="a", finish_reason=pb.FINISH_REASON_STOP, stop_reason="b"
    )
    assert item_to_json(Annotated(output)) == {
        "data": {
            "index": 0,
            "text": "a",
            "token_ids": [1],
            "tokens": ["a"],
            "finish_reason": "FINISH_REASON_STOP",
            "stop_reason": {"text": "b"},
        }
    }


def test_an_output_without_text_still_says_so() -> None:
    assert item_to_json(Annotated(BackendOutput()))["data"] == {"index": 0, "text": ""}


def test_events_and_errors_stand_beside_the_data() -> None:
    failure = Failure(14, pb.ERROR_REASON_DRAINING, "later", retryable=True, field="f")
    assert item_to_json(Annotated(id="1", event="e", comment=["c"], error=failure)) == {
        "event_id": "1",
        "event": "e",
        "comment": ["c"],
        "error": {
            "code": 14,
            "reason": "ERROR_REASON_DRAINING",
            "message": "later",
            "field": "f",
            "retryable": True,
        },
    }
