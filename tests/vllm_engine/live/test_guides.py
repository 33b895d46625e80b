"""Grammars and lists in vLLM: kept by the library that can, or refused."""

from __future__ import annotations

import json

import grpc
import pytest

from enginewire import v1 as pb
from tests.server.serving import detail_of
from tests.vllm_engine.live.test_answers import outputs, prompt_of, request, text_of

FOR_XGRAMMAR = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
FOR_LLGUIDANCE = {"type": "string", "allOf": [{"enum": ["left", "right"]}]}
FOR_NEITHER = {"type": "integer", "not": {"enum": [1]}}


def asked_for(**guide: str) -> pb.PreprocessedRequest:
    asked = request("Who are you?")
    asked.sampling_options.guided_decoding.MergeFrom(pb.GuidedDecoding(**guide))
    return asked


def refusal(vllm, asked: pb.PreprocessedRequest) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        outputs(vllm, asked)
    return caught.value.code(), detail_of(caught.value).field, caught.value.details()


def test_each_schema_is_kept_by_the_library_that_follows_it(vllm):
    for schema in (FOR_XGRAMMAR, FOR_LLGUIDANCE, FOR_XGRAMMAR):
        found = json.loads(text_of(outputs(vllm, asked_for(json_schema=json.dumps(schema)))))
        assert found in ({"yes": True}, {"yes": False}, "left", "right")
        assert isinstance(found, str) is (schema is FOR_LLGUIDANCE)


def test_a_keyword_that_no_library_follows_is_refused_with_its_place(vllm):
    code, field, text = refusal(vllm, asked_for(json_schema=json.dumps(FOR_NEITHER)))
    assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "sampling_options.guided_decoding")
    assert "not at # is not followed by xgrammar" in text
    assert "not at # is not followed by llguidance" in text


def test_a_refusal_says_nothing_of_where_its_library_was_built(vllm):
    _, _, text = refusal(vllm, asked_for(regex="("))
    assert "arenthesis" in text
    assert "/" not in text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lists_that_leave_nothing_behind_the_first_token_fail_the_request(vllm, temperature):
    [first, *_] = prompt_of("Who are you?")
    asked = request("Who are you?", temperature=temperature, n=2)
    asked.sampling_options.allowed_token_ids[:] = [first]
    asked.sampling_options.bad_words_token_ids.add(token_ids=[first, first])
    code, field, _ = refusal(vllm, asked)
    assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "sampling_options.allowed_token_ids")


def test_lists_that_leave_nothing_of_a_grammar_fail_the_request(vllm):
    asked = asked_for(regex="[0-9]{4}")
    asked.sampling_options.allowed_token_ids[:] = prompt_of("Who are you?")
    code, field, _ = refusal(vllm, asked)
    assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "sampling_options.allowed_token_ids")


def test_structural_tags_are_followed_whatever_library_was_first(vllm):
    schema = {"type": "json_schema", "json_schema": FOR_XGRAMMAR}
    tag = json.dumps({"type": "structural_tag", "format": schema})
    guides = {"json_schema": json.dumps(FOR_LLGUIDANCE)}, {"structural_tag": tag}
    first, second = [json.loads(text_of(outputs(vllm, asked_for(**guide)))) for guide in guides]
    assert first in ("left", "right")
    assert second in ({"yes": True}, {"yes": False})
