"""Every field that vLLM and OpenAI publish is served, refused by name, or known to change nothing here."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.embeddings.fields import read_asked
from enginewire.backend.frontends.http_api.openai.answers.format import ModelFormats
from enginewire.backend.frontends.http_api.openai.chat import ChatEndpoint
from enginewire.backend.frontends.http_api.openai.completions import CompletionEndpoint
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.page.token_rows import TokenEndpoint
from enginewire.backend.frontends.http_api.responses.fields import read_request
from enginewire.backend.parsing.formats import THINKING, TOOL_FORMATS
from tests.backend.frontends.http_api.published_fields import FIELDS
from tests.repository import ROOT


def each(value: object, *keys: str) -> dict[str, object]:
    """The same value for several fields."""
    return dict.fromkeys(keys, value)


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}
SERVED: dict[str, object] = {
    **each(3, "best_of", "max_tokens", "min_tokens", "n", "prompt_logprobs", "stream_interval"),
    **each(5, "max_completion_tokens", "priority", "seed", "thinking_token_budget", "top_k"),
    **each(0.5, "frequency_penalty", "length_penalty", "min_p", "presence_penalty"),
    **each(0.5, "repetition_penalty", "temperature", "top_p"),
    **each(True, "ignore_eos", "include_stop_str_in_output", "stream", "use_beam_search"),
    **each(True, "return_token_ids", "return_tokens_as_token_ids"),
    **each([7], "allowed_token_ids", "logprob_token_ids", "stop_token_ids"),
    **each("abc", "cache_salt", "guided_grammar", "guided_regex", "model", "request_id", "stop"),
    "guided_choice": ["a"],
    "guided_decoding_backend": "xgrammar",
    "guided_json": {"type": "null"},
    "guided_whitespace_pattern": " ?",
    "logit_bias": {"7": -1},
    "response_format": SCHEMA,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "bad_words": ["a"],
    "truncate_prompt_tokens": 8,
    "truncation_side": "right",
    "stream_options": {"include_usage": True},
    "structured_outputs": {"regex": "a"},
}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
FLAT_TOOLS = [{"type": "function", "name": "f"}]
# What a model with tools and thinking has; its template reads whatever it is given.
FORMATS = ModelFormats(
    TOOL_FORMATS["hermes"], THINKING["qwen3"], frozenset({"a", "reasoning_effort", "tools"}), "tool_calls"
)
FOR_TEMPLATES: dict[str, object] = {
    "add_generation_prompt": False,
    "chat_template_kwargs": {"a": 1},
    "continue_final_message": True,
    "include_reasoning": False,
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "tool_choice": "none",
    "tools": TOOLS,
}
SERVED_IN_CHAT = (
    SERVED
    | FOR_TEMPLATES
    | {
        "messages": [{"role": "user", "content": "z"}],
        "logprobs": True,
        "top_logprobs": 2,
    }
)
SERVED_IN_COMPLETIONS = SERVED | {"prompt": "z", "logprobs": 2, "echo": True, "add_special_tokens": False}
SERVED_IN_EMBEDDINGS = {"model": "m", "input": "z", "encoding_format": "base64", "dimensions": 2}
BESIDE: dict[str, dict[str, object]] = {
    "best_of": {"n": 1},
    "guided_decoding_backend": {"guided_regex": "a"},
    "guided_whitespace_pattern": {"guided_regex": "a"},
    "logprob_token_ids": {"logprobs": True},
    "parallel_tool_calls": {"tools": TOOLS},
    "spaces_between_special_tokens": {"skip_special_tokens": False},
    "stream_options": {"stream": True},
    "tool_choice": {"tools": TOOLS},
    "top_logprobs": {"logprobs": True},
}

REFUSED: dict[str, object] = {
    **each(True, "continue_final_message", "return_prompt_text", "watermarking"),
    **each(False, "add_generation_prompt", "detokenize", "include_reasoning"),
    **each({"a": 1}, "chat_template_kwargs", "ec_transfer_params", "kv_transfer_params"),
    **each({"a": 1}, "media_io_kwargs", "mm_processor_kwargs", "vllm_xargs"),
    **each({}, "audio", "moderation", "repetition_detection", "web_search_options"),
    **each(["a"], "documents", "functions", "logits_processors", "tools"),
    **each("a", "chat_template", "prompt_embeds", "suffix", "tool_choice", "verbosity"),
    "function_call": "auto",
    "modalities": ["text", "audio"],
    "reasoning_effort": "low",
}
REFUSED_IN_CHAT = {key: value for key, value in REFUSED.items() if key not in FOR_TEMPLATES} | {
    "add_special_tokens": True,
    "echo": True,
}
REFUSED_IN_COMPLETIONS = REFUSED
REFUSED_IN_EMBEDDINGS = {
    "add_special_tokens": False,
    "embed_dtype": "float16",
    "endianness": "big",
    "messages": [{"role": "user", "content": "z"}],
    "mm_processor_kwargs": {"a": 1},
    "normalize": False,
    "padding": "max_length",
    "truncate_prompt_tokens": 8,
    "use_activation": False,
}

WITHOUT_EFFECT: dict[str, tuple[object, str]] = {
    "metadata": ({"a": "b"}, "for the caller's own records; nothing is stored"),
    "parallel_tool_calls": (False, "no tools are called"),
    "prediction": ({"type": "content", "content": "a"}, "a hint that saves time"),
    "prompt_cache_key": ("a", "a hint for the choice of a cache"),
    "prompt_cache_options": ({}, "a hint for the choice of a cache"),
    "prompt_cache_retention": ("24h", "a hint for how long a cache lasts"),
    "return_mm_kwargs": (False, "vLLM ignores it where text is generated"),
    "return_token_offsets": (True, "vLLM ignores it where text is generated"),
    "routed_experts_prompt_start": (3, "cuts data that is not returned"),
    "safety_identifier": ("a", "who the caller's user is"),
    "service_tier": ("flex", "there is one"),
    "session_id": ("a", "a hint for the choice of an engine"),
    "store": (True, "nothing is stored"),
    "user": ("a", "who the caller's user is"),
}
SERVED_IN_RESPONSES = {key: value for key, value in SERVED.items() if key in FIELDS["responses"]} | {
    "include": ["message.output_text.logprobs"],
    "input": "z",
    "instructions": "z",
    "max_output_tokens": 5,
    "reasoning": {"effort": "low"},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "null"}}},
    "tool_choice": "none",
    "tools": FLAT_TOOLS,
    "top_logprobs": 2,
    "truncation": "auto",
}
del SERVED_IN_RESPONSES["stream_options"]
REFUSED_IN_RESPONSES: dict[str, object] = {
    **each("a", "conversation", "previous_response_id"),
    **each({}, "access_programs", "moderation", "previous_response", "prompt"),
    **each({"a": 1}, "background_options", "image", "mm_processor_kwargs", "vllm_xargs"),
    **each(True, "background", "enable_response_messages"),
    **each([{}], "context_management", "previous_input_messages"),
    "max_tool_calls": 3,
}
WITHOUT_EFFECT_IN_RESPONSES = {
    key: each
    for key, each in WITHOUT_EFFECT.items()
    if key in FIELDS["responses"] and key != "parallel_tool_calls"
} | {"stream_options": ({"include_obfuscation": False}, "nothing is hidden in the length of events")}
WITHOUT_EFFECT_IN_EMBEDDINGS: dict[str, tuple[object, str]] = {
    "user": WITHOUT_EFFECT["user"],
    "truncation_side": ("left", "nothing is cut: truncate_prompt_tokens is refused"),
    "cache_salt": ("a", "vectors come from no shared prefix"),
    "priority": (1, "says when, not what"),
    "request_id": ("a", "the answer has no id"),
    **dict.fromkeys(
        ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs"),
        (True, "belongs to messages, which are refused"),
    ),
    "media_io_kwargs": ({}, "belongs to messages, which are refused"),
}
ENOUGH = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}


def read_response(body: Body) -> object:
    """Without what the answer only repeats."""
    return replace(read_request(body, FORMATS), told={})


WITHOUT_EFFECT_IN_CHAT = {key: each for key, each in WITHOUT_EFFECT.items() if key not in FOR_TEMPLATES}

FACES = {
    "chat": (ChatEndpoint(FORMATS).read, SERVED_IN_CHAT, REFUSED_IN_CHAT, WITHOUT_EFFECT_IN_CHAT),
    "completions": (CompletionEndpoint().read, SERVED_IN_COMPLETIONS, REFUSED_IN_COMPLETIONS, WITHOUT_EFFECT),
    "responses": (
        read_response,
        SERVED_IN_RESPONSES,
        REFUSED_IN_RESPONSES,
        WITHOUT_EFFECT_IN_RESPONSES,
    ),
    "embeddings": (read_asked, SERVED_IN_EMBEDDINGS, REFUSED_IN_EMBEDDINGS, WITHOUT_EFFECT_IN_EMBEDDINGS),
}
PUBLISHED = [(face, key) for face, keys in FIELDS.items() for key in sorted(keys)]


def read(face: str, **fields: object) -> object:
    enough = ENOUGH if face in ("chat", "completions") else {"input": "x"}
    return FACES[face][0](Body(enough | fields))


def beside_of(face: str, key: str) -> dict[str, object]:
    """What a field needs beside it."""
    if (face, key) == ("responses", "top_logprobs"):
        return {"include": SERVED_IN_RESPONSES["include"]}
    if face == "responses" and key in ("parallel_tool_calls", "tool_choice"):
        return {"tools": FLAT_TOOLS}
    _, served, refused, _ = FACES[face]
    return {
        beside: served.get(beside, value)
        for beside, value in BESIDE.get(key, {}).items()
        if beside not in refused
    }


@pytest.mark.parametrize(("face", "key"), PUBLISHED)
def test_a_published_field_is_served_or_refused_by_name_or_changes_nothing(face: str, key: str) -> None:
    _, served, refused, without_effect = FACES[face]
    assert (key in served) + (key in refused) + (key in without_effect) == 1
    beside = beside_of(face, key)
    if key in served:
        assert read(face, **beside, **{key: served[key]}) != read(face, **beside)
    elif key in refused:
        with pytest.raises(InvalidBody) as refusal:
            read(face, **{key: refused[key]})
        assert refusal.value.field == key
    else:
        assert read(face, **beside, **{key: without_effect[key][0]}) == read(face, **beside)


@pytest.mark.parametrize("face", FACES)
def test_a_refused_field_is_fine_as_null_and_with_the_value_that_changes_nothing(face: str) -> None:
    neutral: dict[str, object] = dict.fromkeys(FACES[face][2])
    if face in ("chat", "completions"):
        neutral |= {"chat_template_kwargs": {}, "tools": [], "tool_choice": "auto", "detokenize": True}
        neutral |= {"spaces_between_special_tokens": True, "return_token_ids": False, "verbosity": "medium"}
        neutral |= {"bad_words": [], "logprob_token_ids": [], "truncate_prompt_tokens": None}
        neutral["add_special_tokens"] = True if face == "completions" else None
    assert read(face, **neutral) == read(face)


def test_in_chat_the_template_writes_the_special_tokens() -> None:
    asked, plain = read("chat", add_special_tokens=False), read("chat")
    assert (asked.prompts, asked.conversation) == (plain.prompts, plain.conversation)
    assert plain.conversation is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "a" * 1025}, "cache_salt"),
        ({"cache_salt": 7}, "cache_salt"),
        ({"request_id": "a\r\nset-cookie: b"}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a" * 65}, "request_id"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": True}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"bad_words": ["a", " "]}, "bad_words[1]"),
        ({"bad_words": ["a"] * 1025}, "bad_words"),
        ({"bad_words": [7]}, "bad_words[0]"),
        ({"logprob_token_ids": [7]}, "logprob_token_ids"),
        ({"logprobs": None, "logprob_token_ids": [-1]}, "logprob_token_ids[0]"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"structured_outputs": {"json": 7}}, "structured_outputs.json"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
        (
            {"structured_outputs": {"regex": "a", "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": "", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        (
            {"structured_outputs": {"disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
        ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend"),
        ({"guided_json": 7}, "guided_json"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"7": True}}, "logit_bias.7"),
    ],
)
@pytest.mark.parametrize("endpoint", [ChatEndpoint(), CompletionEndpoint(), TokenEndpoint()])
def test_a_value_that_cannot_be_meant_is_refused_with_its_field(endpoint, fields, param) -> None:
    with pytest.raises(InvalidBody) as refusal:
        endpoint.read(Body(ENOUGH | fields))
    assert refusal.value.field == param


def request_of(**fields: object) -> pb.PreprocessedRequest:
    asked = CompletionEndpoint().read(Body(ENOUGH | fields))
    return asked.prompts[0].request


def test_seeds_keep_their_sign_without_two_becoming_one() -> None:
    seeds = [-(2**63), -1, 0, 2**63 - 1]
    assert [request_of(seed=seed).sampling_options.seed for seed in seeds] == [2**63, 2**64 - 1, 0, 2**63 - 1]


def test_unlimited_thinking_is_no_limit() -> None:
    assert request_of(thinking_token_budget=0).stop_conditions.max_thinking_tokens == 0
    assert request_of(thinking_token_budget=0).stop_conditions.HasField("max_thinking_tokens")
    assert request_of(thinking_token_budget=-1) == request_of()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"guided_json": {"a": 1}}, pb.GuidedDecoding(json_schema='{"a":1}')),
        ({"guided_json": '{"a": 1}'}, pb.GuidedDecoding(json_schema='{"a": 1}')),
        ({"guided_regex": "a+"}, pb.GuidedDecoding(regex="a+")),
        ({"guided_choice": ["a", "b"]}, pb.GuidedDecoding(choice=pb.GuidedChoice(choices=["a", "b"]))),
        ({"guided_grammar": "r"}, pb.GuidedDecoding(ebnf_grammar="r")),
        (
            {"guided_regex": "a", "guided_decoding_backend": "b", "guided_whitespace_pattern": "c"},
            pb.GuidedDecoding(regex="a", backend="b", whitespace_pattern="c"),
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": "c", "disable_any_whitespace": False}},
            pb.GuidedDecoding(json_schema="{}", whitespace_pattern="c"),
        ),
        (
            {
                "response_format": {"type": "json_object"},
                "structured_outputs": {"disable_any_whitespace": True},
            },
            pb.GuidedDecoding(json_object=True, whitespace_pattern=" ?"),
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {}}},
            pb.GuidedDecoding(structural_tag='{"type":"structural_tag","format":{}}'),
        ),
    ],
)
def test_a_grammar_comes_through_whatever_its_key(fields, expected) -> None:
    assert request_of(**fields).sampling_options.guided_decoding == expected


@pytest.mark.parametrize(
    ("fields", "path", "param"),
    [
        ({"guided_json": {}}, "guided_decoding.json_schema", "guided_json"),
        (
            {"guided_regex": "a", "guided_decoding_backend": "b"},
            "guided_decoding.backend",
            "guided_decoding_backend",
        ),
        (
            {"structured_outputs": {"grammar": "r"}},
            "guided_decoding.ebnf_grammar",
            "structured_outputs.grammar",
        ),
        ({"structured_outputs": {"grammar": "r"}}, "guided_decoding", "structured_outputs.grammar"),
        ({"response_format": SCHEMA}, "guided_decoding.json_schema", "response_format.json_schema"),
    ],
)
def test_what_an_engine_refuses_of_a_grammar_has_the_key_it_came_with(fields, path, param) -> None:
    asked: GenerationRequest = ChatEndpoint().read(Body(ENOUGH | fields))
    assert asked.param_of(f"sampling_options.{path}") == param


def test_the_page_shares_the_fields() -> None:
    assert TokenEndpoint().read(Body({"prompt": "x", "cache_salt": "a"})).prompts[0].request.cache_salt == "a"
    with pytest.raises(InvalidBody, match="add_special_tokens"):
        TokenEndpoint().read(Body({**ENOUGH, "prompt": None, "add_special_tokens": True}))


def test_the_page_on_http_names_every_published_field() -> None:
    page = (ROOT / "docs" / "http.md").read_text()
    assert [key for _, key in PUBLISHED if not re.search(rf"`{key}[`.]", page)] == []
