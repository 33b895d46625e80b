"""Bodies and answers without a server: whatever comes in, and what goes out of it."""

from __future__ import annotations

import contextlib

import orjson
import pytest
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.openai.answer import Answer, Head
from enginewire.backend.frontends.http_api.openai.chat import ChatEndpoint
from enginewire.backend.frontends.http_api.openai.completions import CompletionEndpoint
from enginewire.backend.frontends.http_api.openai.endpoint import Endpoint
from enginewire.backend.frontends.http_api.openai.fields.generation import SCALARS, UNSUPPORTED
from enginewire.backend.frontends.http_api.openai.generation_request import MAX_CHOICES, GenerationRequest

ENDPOINTS = [ChatEndpoint(), CompletionEndpoint()]
OTHER_KEYS = [
    "add_special_tokens",
    "allowed_token_ids",
    "cache_salt",
    "echo",
    "guided_choice",
    "guided_decoding_backend",
    "guided_json",
    "guided_regex",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "messages",
    "model",
    "prompt",
    "prompt_logprobs",
    "request_id",
    "response_format",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "structured_outputs",
    "thinking_token_budget",
    "top_logprobs",
]
NESTED_KEYS = ["type", "json_schema", "schema", "regex", "choice", "json", "role", "content", "text", "5"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NESTED_KEYS), inner, max_size=3)
    ),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from([*SCALARS, *UNSUPPORTED, *OTHER_KEYS]), VALUES, max_size=5)
PROMPT_IDS = {0: [120, 121], 1: [121]}
ENOUGH = {"messages": [{"role": "user", "content": "x"}], "prompt": ["x", "y"]}


def asked_for(endpoint: Endpoint, **fields: object) -> GenerationRequest:
    return endpoint.read(Body(ENOUGH | fields))


def answer_to(asked: GenerationRequest, vocabulary: Vocabulary) -> Answer:
    return Answer(CompletionEndpoint(), asked, Head("id", 1, "m"), vocabulary, PROMPT_IDS)


@given(BODIES, st.booleans())
def test_whatever_a_body_holds_it_is_read_or_refused_with_a_field(
    fields: dict[str, object], is_enough: bool
) -> None:
    for endpoint in ENDPOINTS:
        body = Body.parse(orjson.dumps(ENOUGH | fields if is_enough else fields))
        with contextlib.suppress(InvalidBody):
            asked = endpoint.read(body)
            assert 1 <= asked.n * len(asked.prompts) <= MAX_CHOICES
            assert all(prompt.SerializeToString() for prompt in asked.prompts)


@given(st.binary(max_size=64))
def test_bytes_that_are_no_object_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidBody) as refusal:
        Body.parse(b"[" + data)
    assert refusal.value.field == ""


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_plain_field_reaches_its_place_in_the_contract(endpoint: Endpoint) -> None:
    fields = dict.fromkeys(SCALARS, 1) | {
        key: True for key, (read, _, _) in SCALARS.items() if read is Body.flag
    }
    request = asked_for(endpoint, **fields).prompts[-1].request
    for key, (_, message, field) in SCALARS.items():
        assert getattr(getattr(request, message), field) == 1, key


def test_guides_of_both_spellings_reach_the_contract() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    for fields, expected in (
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, pb.GuidedDecoding(json_object=True)),
        ({"response_format": schema}, pb.GuidedDecoding(json_schema='{"type":"object"}')),
        ({"structured_outputs": {"json": {"a": 1}}}, pb.GuidedDecoding(json_schema='{"a":1}')),
        ({"structured_outputs": {"regex": "a+"}}, pb.GuidedDecoding(regex="a+")),
        ({"structured_outputs": {"grammar": "r"}}, pb.GuidedDecoding(ebnf_grammar="r")),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            pb.GuidedDecoding(choice=pb.GuidedChoice(choices=["a", "b"])),
        ),
    ):
        options = asked_for(ChatEndpoint(), **fields).prompts[0].request.sampling_options
        assert options.HasField("guided_decoding") is (expected is not None)
        assert expected is None or options.guided_decoding == expected
    with pytest.raises(InvalidBody):
        asked_for(ChatEndpoint(), response_format=schema, structured_outputs={"regex": "a"})


def test_withheld_text_makes_no_event(vocabulary: Vocabulary) -> None:
    answer = answer_to(asked_for(CompletionEndpoint(), stream=True), vocabulary)
    assert answer.events([(0, BackendOutput(token_ids=[65]))]) == b""
    assert answer.events([(1, BackendOutput(token_ids=[65], text="A"))]).count(b"data: ") == 1


def test_outputs_that_arrive_together_make_one_event_per_choice(vocabulary: Vocabulary) -> None:
    answer = answer_to(asked_for(CompletionEndpoint(), stream=True, n=2), vocabulary)
    batch = [
        (place, BackendOutput(token_ids=[65], text=text, index=index))
        for place, index, text in ((0, 0, "a"), (0, 1, "b"), (1, 1, "c"), (0, 0, "d"))
    ]
    events = [orjson.loads(event) for event in answer.events(batch).split(b"data: ")[1:]]
    assert [(event["choices"][0]["index"], event["choices"][0]["text"]) for event in events] == [
        (0, "ad"),
        (1, "b"),
        (3, "c"),
    ]


def scores(*logprobs: float) -> pb.PromptLogprobs:
    return pb.PromptLogprobs(logprobs=pb.Logprobs(token_logprobs=logprobs, token_ranks=[7] * len(logprobs)))


def test_other_choices_wait_for_the_scores_that_come_with_the_first(vocabulary: Vocabulary) -> None:
    asked = asked_for(CompletionEndpoint(), prompt=["xy"], stream=True, n=2, echo=True, logprobs=0)
    answer = answer_to(asked, vocabulary)
    row = pb.Logprobs(token_logprobs=[-1.0])
    early = BackendOutput(token_ids=[65], text="A", index=1, logprobs=row)
    first = BackendOutput(token_ids=[66], text="B", logprobs=row, prompt_logprobs=scores(-2.5))
    assert answer.events([(0, early)]) == b""
    events = [orjson.loads(event) for event in answer.events([(0, first)]).split(b"data: ")[1:]]
    choices = {event["choices"][0]["index"]: event["choices"][0] for event in events}
    assert {index: choice["text"] for index, choice in choices.items()} == {0: "xyB", 1: "xyA"}
    assert choices[1]["logprobs"] == {
        "tokens": ["x", "y", "A"],
        "token_logprobs": [None, -2.5, -1.0],
        "top_logprobs": [None, {}, {}],
        "text_offset": [0, 1, 2],
    }


@pytest.mark.parametrize("told", [None, scores(), scores(-1.0, -2.0)])
def test_scores_of_another_prompt_are_a_violation(
    told: pb.PromptLogprobs | None, vocabulary: Vocabulary
) -> None:
    answer = answer_to(asked_for(CompletionEndpoint(), prompt_logprobs=1), vocabulary)
    with pytest.raises(RequestFailed) as failure:
        answer.add([(0, BackendOutput(token_ids=[65], text="A", prompt_logprobs=told))])
    assert failure.value.failure.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION


def test_scores_have_the_token_before_its_alternatives(vocabulary: Vocabulary) -> None:
    asked = asked_for(CompletionEndpoint(), prompt=["xy"], prompt_logprobs=2)
    answer = answer_to(asked, vocabulary)
    told = scores(-1e30)
    told.logprobs.MergeFrom(pb.Logprobs(top_n=2, top_token_ids=[65, 121], top_logprobs=[-0.5, -1.0]))
    answer.add([(0, BackendOutput(text="A", prompt_logprobs=told))])
    assert orjson.loads(answer.whole())["choices"][0]["prompt_logprobs"] == [
        None,
        {
            "121": {"logprob": -9999.0, "rank": 7, "decoded_token": "y"},
            "65": {"logprob": -0.5, "rank": 1, "decoded_token": "A"},
        },
    ]


def test_usage_is_summed_over_prompts_with_the_cached_tokens(vocabulary: Vocabulary) -> None:
    answer = answer_to(asked_for(CompletionEndpoint()), vocabulary)
    usage = pb.CompletionUsage(prompt_tokens=3, completion_tokens=2, total_tokens=5)
    usage.prompt_tokens_details.cached_tokens = 1
    answer.add([(place, BackendOutput(text="x", completion_usage=usage)) for place in range(2)])
    assert orjson.loads(answer.whole())["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_true_is_no_number_and_one_is_not_true() -> None:
    body = Body({"true": True, "one": 1})
    for read in (lambda: body.integer("true"), lambda: body.number("true"), lambda: body.flag("one")):
        with pytest.raises(InvalidBody):
            read()
