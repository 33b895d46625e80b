from __future__ import annotations

import json
from random import Random

import pytest

from enginewire.backend.parsing.delta import AnswerReader, call_id
from enginewire.backend.parsing.formats import TOOL_FORMATS
from tests.backend.parsing.reading import SCHEMAS, Read, cut, read


def reader(name: str) -> AnswerReader:
    return AnswerReader(None, TOOL_FORMATS[name].parser(SCHEMAS), new_id=call_id)


ANSWERS = [
    (
        "hermes",
        'Sure.\n<tool_call>\n{"name": "f", "arguments": {"a": 1, "s": "x</tool_call>\\"}"}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {"b": [1, {"c": "日本"}]}, "name": "g"}\n</tool_call>\n',
        Read(
            text="Sure.",
            calls=[("f", '{"a": 1, "s": "x</tool_call>\\"}"}'), ("g", '{"b": [1, {"c": "日本"}]}')],
        ),
    ),
    ("hermes", " a < b <tool_cal", Read(text=" a < b <tool_cal")),
    (
        "hermes",
        '<tool_call> none {"name": <tool_call>{"name":"f","arguments":"{\\"a\\": 2}"}</tool_call> end ',
        Read(text='<tool_call> none {"name":end ', calls=[("f", '{"a": 2}')]),
    ),
    ("hermes", '<tool_call>{"name":"f"} and', Read(text="and", calls=[("f", "{}")])),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":null}<tool_call>{"id":[7],"name":"g"}',
        Read(calls=[("f", "{}"), ("g", "{}")]),
    ),
    ("hermes", '<tool_call>{"name":"f","arguments":{"a":1', Read(calls=[("f", '{"a":1')])),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{"a":1},bad}',
        Read(text="bad}", calls=[("f", '{"a":1}')]),
    ),
    ("hermes", '<tool_call>{"nam', Read(text='<tool_call>{"nam')),
    (
        "hermes",
        '<tool_call>{"arguments": {}}</tool_call>',
        Read(text='<tool_call>{"arguments": {}}</tool_call>'),
    ),
    (
        "json",
        ' [ {"name":"f","parameters":{"a":1}}, {"name": "g"}] bye',
        Read("", "bye", [("f", '{"a":1}'), ("g", "{}")]),
    ),
    ("json", '{"name":"f","arguments":{"s":"\\\\"}}', Read(calls=[("f", '{"s":"\\\\"}')])),
    *(
        ("json", text, Read(text=text))
        for text in (
            '{"name":"other","parameters":{}}',
            ' {"x": 1}',
            " plain\n",
            ' [1, {"name":"f"}]',
            "[",
            '{"name": 7}',
        )
    ),
    (
        "llama3_json",
        '<|python_tag|>{"name":"f","parameters":{"a":1}}; {"name":"g","parameters":{}}',
        Read(calls=[("f", '{"a":1}'), ("g", "{}")]),
    ),
    ("llama3_json", "<|python_tag|>print(1)", Read(text="<|python_tag|>print(1)")),
    (
        "mistral",
        'ok [TOOL_CALLS] [{"name":"f","arguments":{"a":1}}, {"name":"g","arguments":{}, "id": "abcdefghi"}]',
        Read(text="ok", calls=[("f", '{"a":1}'), ("g", "{}")]),
    ),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a":1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{"z":"}"}',
        Read(calls=[("f", '{"a":1}'), ("g", '{"z":"}"}')]),
    ),
    ("mistral", "[TOOL_CALLS]what is {this?", Read(text="[TOOL_CALLS]what is {this?")),
    ("mistral", "[TOOL_CALLS]", Read(text="[TOOL_CALLS]")),
    (
        "pythonic",
        ' [f(a=1, s="x,)]\\d"), g(l=[1, -2.5, {"k": None}], t=true)]',
        Read(calls=[("f", '{"a": 1, "s": "x,)]\\\\d"}'), ("g", '{"l": [1, -2.5, {"k": null}], "t": true}')]),
    ),
    *(
        ("pythonic", text, Read(text=text))
        for text in (
            "[1, 2]",
            "hello [f()]",
            "[other()]",
            "[f(1)]",
            "[f(a=b)]",
            "[f(",
            "[f(a=__import__('os'))]",
            "[" * 9999,
        )
    ),
    (
        "qwen3_coder",
        "Hi\n<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=s>\n12\nand <b>\n"
        '</parameter>\n<parameter=n>\nnull\n</parameter>\n<parameter=o>\n{"k": 1}\n</parameter>\n'
        "<parameter=x>7"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        Read(
            text="Hi",
            calls=[("f", '{"a": 12, "s": "12\\nand <b>", "n": null, "o": {"k": 1}, "x": "7"}'), ("g", "{}")],
        ),
    ),
    ("qwen3_coder", "<tool_call>\n<func f>", Read(text="<tool_call>\n<func f>")),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n12", Read(calls=[("f", "")])),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>12</parameter> and so on",
        Read(text="and so on", calls=[("f", '{"a": 12}')]),
    ),
]


@pytest.mark.parametrize(("name", "text", "expected"), ANSWERS)
def test_an_answer_means_the_same_however_it_is_cut(name: str, text: str, expected: Read) -> None:
    assert read(reader(name), [text]) == expected
    # The longest one has nothing in it that depends on the place of a cut.
    for seed in range(100 if len(text) < 1000 else 1):
        assert read(reader(name), cut(text, Random(seed))) == expected, seed


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if name != "pythonic"])
def test_text_and_arguments_do_not_wait_for_their_end(name: str) -> None:
    text = {
        "hermes": '<tool_call>{"name": "f", "arguments": {"s": "abc", "a',
        "mistral": '[TOOL_CALLS]f{"s": "abc", "a',
        "qwen3_coder": "<tool_call><function=f><parameter=s>abc</parameter><para",
    }.get(name, '{"name": "f", "parameters": {"s": "abc", "a')
    one = reader(name)
    one.feed(text)
    [call] = one.take().calls
    assert call.name == "f"
    assert call.arguments.startswith('{"s": "abc"')
    one = reader(name)
    one.feed("Plain text")
    assert one.take().text == "Plain text"


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_random_text_loses_nothing_but_space(name: str) -> None:
    words = [
        *[
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "{",
            "}",
            "[",
            "]",
            '"',
            "name",
            ":",
            "f",
            ",",
            "日",
        ],
        " ",
        "\n",
    ]
    for seed in range(200):
        random = Random(seed)
        text = "".join(random.choices(words, k=random.randrange(12)))
        whole = read(reader(name), [text])
        assert read(reader(name), cut(text, random)) == whole, text
        if not whole.calls:
            assert "".join(whole.text.split()) == "".join(text.split()), text


def test_calls_of_a_grammar_are_json() -> None:
    parser = TOOL_FORMATS["json"].parser({"f": {}})
    answer = json.dumps([{"name": "f", "parameters": {"a": [1]}}], indent=2)
    result = read(AnswerReader(None, parser, new_id=call_id), [answer])
    assert [(name, json.loads(arguments)) for name, arguments in result.calls] == [("f", {"a": [1]})]
