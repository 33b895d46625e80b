"""What a caller reads who has sent something wrong: the field as they call it, and what is allowed there."""

from __future__ import annotations

import pytest
from openai import BadRequestError

from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.embeddings.fields import read_asked
from enginewire.backend.frontends.http_api.messages.fields import read_request as read_message
from enginewire.backend.frontends.http_api.openai.answers.format import ModelFormats
from enginewire.backend.frontends.http_api.openai.chat import ChatEndpoint
from enginewire.backend.frontends.http_api.openai.completions import CompletionEndpoint
from enginewire.backend.frontends.http_api.responses.fields import read_request as read_response
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.http_api.serving import sdk

FORMATS = ModelFormats(variables=frozenset({"tools"}), template='{% if message.role == "robot" %}')
HELLO = {"role": "user", "content": "x"}
READ = {
    "chat": lambda fields: ChatEndpoint(FORMATS).read(Body({"messages": [HELLO]} | fields)),
    "completions": lambda fields: CompletionEndpoint().read(Body({"prompt": "x"} | fields)),
    "embeddings": lambda fields: read_asked(Body({"input": "x"} | fields)),
    "messages": lambda fields: read_message(Body({"messages": [HELLO], "max_tokens": 1} | fields), FORMATS),
    "responses": lambda fields: read_response(Body({"input": "x"} | fields), FORMATS),
}
FUNCTION = {"type": "function", "function": {"name": "f"}}
MISSING = ", but is missing or null"
ROLES = "must be one of developer, system, user, assistant, tool"
A_PROMPT = "must be a string or a list of token ids"
CHAT: list[tuple[dict[str, object], str]] = [
    ({"max_tokens": -1}, "max_tokens: must be at least 1, got -1"),
    ({"max_completion_tokens": 2**32}, "max_completion_tokens: must be at most 4294967295, got 4294967296"),
    ({"n": -2}, "n: must be at least 1, got -2"),
    ({"min_tokens": -1}, "min_tokens: must be at least 0, got -1"),
    ({"priority": -(2**31) - 1}, "priority: must be at least -2147483648, got -2147483649"),
    ({"top_k": 2**31}, "top_k: must be at most 2147483647, got 2147483648"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs: must be at least 0, got -1"),
    ({"thinking_token_budget": -2}, "thinking_token_budget: must be at least 0, or -1 for no limit"),
    ({"stop": 5}, "stop: must be a string or a list of strings"),
    ({"stop": ["a", None]}, f"stop[1]: must be a string{MISSING}"),
    ({"stop_token_ids": [7, -1]}, "stop_token_ids[1]: must be a token id, 0 to 4294967295, got -1"),
    ({"allowed_token_ids": []}, "allowed_token_ids: must not be empty"),
    ({"guided_choice": []}, "guided_choice: must not be empty"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice: must not be empty"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a: the key must be a token id, as a string of digits"),
    (
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage: must be true or false",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": []}},
        "response_format.json_schema: must be an object",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": 7, "schema": {}}}},
        "response_format.json_schema.name: must be a string",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"strict": "yes", "schema": {}}}},
        "response_format.json_schema.strict: must be true or false",
    ),
    ({"messages": None}, f"messages: must be a list of messages{MISSING}"),
    ({"messages": [{"content": "x"}]}, f"messages[0].role: must be a string{MISSING}"),
    ({"messages": [HELLO, {"role": "User", "content": "x"}]}, f"messages[1].role: {ROLES}"),
    ({"messages": [{"role": "function", "content": "x"}]}, f"messages[0].role: {ROLES}"),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content: must be a string or a list of parts",
    ),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]: must be an object"),
    (
        {"messages": [{"role": "assistant", "refusal": "no"}]},
        "messages[0].refusal: not supported; put its text into content",
    ),
    (
        {"messages": [{"role": "assistant", "audio": {"id": "x"}}]},
        "messages[0].audio: not supported; only text is",
    ),
    ({"tools": FUNCTION}, "tools: must be a list of tools"),
    ({"tools": [{"type": "function"}]}, f"tools[0].function: must be an object{MISSING}"),
    (
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name: must be the name of one of tools",
    ),
]
COMPLETIONS: list[tuple[dict[str, object], str]] = [
    ({"prompt": None}, f"prompt: {A_PROMPT}, or a list of either{MISSING}"),
    ({"prompt": 5}, f"prompt: {A_PROMPT}, or a list of either"),
    ({"prompt": ["a", 1]}, f"prompt[1]: {A_PROMPT}"),
    ({"prompt": [[1], ["a"]]}, "prompt[1][0]: must be a whole number"),
    ({"prompt": ["a", [1, -1]]}, "prompt[1][1]: must be a token id, 0 to 4294967295, got -1"),
    ({"logprobs": -1}, "logprobs: must be at least 0, got -1"),
]
RESPONSES: list[tuple[dict[str, object], str]] = [
    ({"input": None}, f"input: must be a string or a list of items{MISSING}"),
    (
        {"input": [{"role": "robot", "content": "x"}]},
        "input[0].role: must be one of user, assistant, system, developer",
    ),
    (
        {"input": [{"role": "user", "content": 5}]},
        "input[0].content: must be a string or a list of parts",
    ),
    ({"max_output_tokens": -1}, "max_output_tokens: must be at least 1, got -1"),
]
MESSAGES: list[tuple[dict[str, object], str]] = [
    ({"max_tokens": None}, f"max_tokens: must be a whole number{MISSING}"),
    ({"max_tokens": -1}, "max_tokens: must be at least 1, got -1"),
    ({"messages": None}, f"messages: must be a list of messages{MISSING}"),
    ({"stop_sequences": [7]}, "stop_sequences[0]: must be a string"),
    ({"system": 5}, "system: must be a string or a list of blocks"),
    (
        {"tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "g"}},
        "tool_choice.name: must be the name of one of tools",
    ),
]
EMBEDDINGS: list[tuple[dict[str, object], str]] = [
    ({"input": None}, f"input: {A_PROMPT}, or a list of either{MISSING}"),
    ({"input": ["a", 5]}, f"input[1]: {A_PROMPT}"),
]
WRONG = [
    (route, fields, sentence)
    for route, calls in {
        "chat": CHAT,
        "completions": COMPLETIONS,
        "embeddings": EMBEDDINGS,
        "messages": MESSAGES,
        "responses": RESPONSES,
    }.items()
    for fields, sentence in calls
]


@pytest.mark.parametrize(("route", "fields", "sentence"), WRONG)
def test_a_refusal_says_the_field_and_what_is_allowed(
    route: str, fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidBody) as refusal:
        READ[route](fields)
    assert str(refusal.value) == sentence
    assert refusal.value.field == sentence.partition(": ")[0]


def test_a_role_of_the_models_own_template_is_no_invention() -> None:
    asked = READ["chat"]({"messages": [{"role": "robot", "content": "x"}]})
    assert [message["role"] for message in asked.conversation.messages] == ["robot"]


def test_a_developer_is_the_system_unless_the_template_knows_one() -> None:
    asked = {"messages": [{"role": "developer", "content": "x"}]}
    knows = ChatEndpoint(ModelFormats(template="{% if role == 'developer' %}")).read(Body(asked))
    assert [message["role"] for message in READ["chat"](asked).conversation.messages] == ["system"]
    assert knows.conversation is not None
    assert [message["role"] for message in knows.conversation.messages] == ["developer"]


@pytest.mark.parametrize(
    ("prompt", "param", "what"),
    [
        ("", "prompt", "must not be empty"),
        (["a", ""], "prompt[1]", "must not be empty"),
        ([[70], [99999]], "prompt[1][0]", "not in the vocabulary"),
    ],
)
async def test_a_prompt_is_refused_by_its_place(
    text_backend: TextBackend, prompt: object, param: str, what: str
) -> None:
    async with sdk(text_backend) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.completions.create(model="mocker", prompt=prompt)
    assert refusal.value.param == param
    assert refusal.value.body["message"].startswith(f"{param}: {what}")


def test_a_bias_is_called_by_its_token() -> None:
    asked = READ["chat"]({"logit_bias": {"70": 1, "71": 200}})
    assert asked.param_of("sampling_options.logit_bias[1].bias") == "logit_bias.71"
    assert asked.param_of("sampling_options.logit_bias[0].token_id") == "logit_bias.70"
    assert asked.param_of("sampling_options.logit_bias[2].bias") == "logit_bias"
    assert asked.param_of("sampling_options.logit_bias") == "logit_bias"


@pytest.mark.parametrize("choice", ["required", FUNCTION])
def test_what_is_wrong_with_parameters_is_wrong_with_tools(choice: object) -> None:
    asked = READ["chat"]({"tools": [FUNCTION], "tool_choice": choice})
    assert asked.param_of("sampling_options.guided_decoding.json_schema") == "tools"
    assert asked.param_of("sampling_options.guided_decoding") == "tool_choice"
