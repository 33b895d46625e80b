from __future__ import annotations

import copy
from typing import Any

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.dynamo.request import FRONTENDS_OWN, to_engine
from tests.backend.frontends.dynamo.recorded import REQUESTS


def asked(**groups: Any) -> dict[str, Any]:
    """A recorded request with something else in it."""
    made = copy.deepcopy(REQUESTS["logprobs"])
    for name, value in groups.items():
        made[name] = {**(made.get(name) or {}), **value} if isinstance(value, dict) else value
    return made


def refusal(given: object) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        to_engine(given)
    return caught.value


def test_every_field_that_the_frontend_sends_arrives() -> None:
    request = to_engine(REQUESTS["everything"])
    assert request.sampling_options == pb.SamplingOptions(
        presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.1, top_p=0.9, top_k=5, min_p=0.1,
        seed=2**64 - 5,
    )  # fmt: skip
    assert request.stop_conditions == pb.StopConditions(max_tokens=9, min_tokens=3, ignore_eos=True)
    assert request.output_options == pb.OutputOptions()
    assert request.token_ids == REQUESTS["everything"]["token_ids"]


def test_an_answer_that_goes_on_here_asks_for_what_is_left_of_it() -> None:
    request = to_engine(REQUESTS["migrated"])
    assert request.token_ids[4:] == [300, 301, 302]
    assert request.stop_conditions == pb.StopConditions(
        max_tokens=17, min_tokens=7, stop_token_ids=[9], stop_token_ids_hidden=[2]
    )
    assert request.output_options == pb.OutputOptions(logprobs=1)
    assert request.eos_token_ids == [2]


@pytest.mark.parametrize(
    ("name", "guide"),
    [
        ("regex", pb.GuidedDecoding(regex="[ab]+")),
        ("grammar", pb.GuidedDecoding(ebnf_grammar='root ::= "a"')),
        ("choice", pb.GuidedDecoding(choice=pb.GuidedChoice(choices=["a", "b"]))),
        (
            "json_schema",
            pb.GuidedDecoding(json_schema='{"type": "object", "properties": {"a": {"type": "integer"}}}'),
        ),
    ],
)
def test_every_guide_finds_its_name(name: str, guide: pb.GuidedDecoding) -> None:
    assert to_engine(REQUESTS[name]).sampling_options.guided_decoding == guide


def test_what_is_the_engines_of_the_routers_hints_arrives() -> None:
    assert to_engine(REQUESTS["cache_salt"]).cache_salt == "abc"
    hints = {
        "dp_rank": 1,
        "lora_name": "x",
        "priority": 3,
        "backend_instance_id": 2**63,
        "strict_priority": 1,
    }
    assert to_engine(asked(routing=hints)).routing == pb.RoutingHints(dp_rank=1, lora_name="x", priority=-3)


def test_packed_ids_are_a_prompt_too() -> None:
    assert to_engine({"token_ids": b"\x01\0\0\0\xff\xff\0\0"}).token_ids == [1, 65535]


def test_a_probe_needs_nothing_but_ids() -> None:
    assert to_engine({"token_ids": [0], "_HEALTH_CHECK": True}) == pb.PreprocessedRequest(
        token_ids=[0], is_probe=True
    )


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"prompt_embeds": "gASV"}, "prompt_embeds"),
        ({"multi_modal_data": {"image_url": [{"Url": "http://127.0.0.1/x"}]}}, "multi_modal_data"),
        ({"prefill_result": {"disaggregated_params": {}}}, "prefill_result"),
        ({"extra_args": {"nvext": {}, "kv_transfer_params": {"a": 1}}}, "extra_args.kv_transfer_params"),
        ({"sampling_options": {"logit_bias": {"5": 1}}}, "sampling_options.logit_bias"),
        ({"stop_conditions": {"new": 1}}, "stop_conditions.new"),
        ({"of_another_release": {"a": 1}}, "of_another_release"),
        (
            {"require_reasoning": True, "sampling_options": {"guided_decoding": {"regex": "a"}}},
            "require_reasoning",
        ),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(given: dict[str, Any], path: str) -> None:
    failure = refusal(asked(**given)).failure
    assert (failure.field, failure.code) == (path, grpc.StatusCode.UNIMPLEMENTED.value[0])
    assert path in failure.message


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"token_ids": None}, "token_ids"),
        ({"token_ids": b"\x01\0\0"}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"token_ids": ["a"]}, "token_ids"),
        ({"stop_conditions": {"max_tokens": "many"}}, "stop_conditions.max_tokens"),
        ({"stop_conditions": {"stop_token_ids": 5}}, "stop_conditions.stop_token_ids"),
        ({"sampling_options": {"n": -1}}, "sampling_options.n"),
        ({"sampling_options": {"seed": "x"}}, "sampling_options.seed"),
        ({"sampling_options": {"guided_decoding": [1]}}, "sampling_options.guided_decoding"),
        (
            {"sampling_options": {"guided_decoding": {"regex": "a", "json": {}}}},
            "sampling_options.guided_decoding.regex",
        ),
        ({"sampling_options": {"guided_decoding": {"regex": 1}}}, "sampling_options.guided_decoding.regex"),
        ({"routing": {"priority": 2.5}}, "routing.priority"),
        ({"output_options": {"logprobs": 1.5}}, "output_options.logprobs"),
        ({"eos_token_ids": [2**32]}, "eos_token_ids"),
    ],
)
def test_a_wrong_value_is_told_with_its_place(given: dict[str, Any], path: str) -> None:
    failure = refusal(asked(**given)).failure
    assert (failure.field, failure.reason) == (path, pb.ERROR_REASON_INVALID_REQUEST)


def test_what_is_the_frontends_own_is_left_to_it() -> None:
    request = asked()
    for path in FRONTENDS_OWN:
        group, _, name = path.rpartition(".")
        (request.setdefault(group, {}) or request[group] if group else request)[name] = [1]
    assert to_engine(request) == to_engine(asked())


def test_anything_but_an_object_is_refused() -> None:
    assert refusal([1]).reason == pb.ERROR_REASON_INVALID_REQUEST
