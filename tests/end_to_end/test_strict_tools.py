"""What a backend writes for strict tools is a grammar that the engine's library keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import InvalidBody
from enginewire.backend.frontends.http_api.openai.fields.guide import Guide
from enginewire.backend.frontends.http_api.openai.tools.fields import AskedTools, Tool
from enginewire.backend.frontends.http_api.openai.tools.guide import tool_guide
from enginewire.backend.parsing.formats import TOOL_FORMATS
from enginewire.backend.parsing.pieces import CallArguments
from enginewire.torch_engine.guided.library import Vocabulary
from enginewire.torch_engine.guided.xgrammar import XGrammar

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = AskedTools([Tool("go_to", PLACE, True, {}), Tool("think", {}, False, {})])
EOS = 256
BYTES = XGrammar(Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (EOS,)))

QWEN = (
    "<function=go_to>\n<parameter=city>\nKyoto\n</parameter>\n<parameter=days>\n{}\n</parameter>\n</function>"
)
ANSWERS = {
    "hermes": '<tool_call>\n{{"name": "go_to", "arguments": {{"city": "Kyoto", "days": {}}}}}\n</tool_call>',
    "llama3_json": '{{"name": "go_to", "parameters": {{"city": "Kyoto", "days": {}}}}}',
    "qwen3_coder": f"<tool_call>\n{QWEN}\n</tool_call>",
}


READY = {"type": "object", "properties": {"ready": {"type": "boolean"}}, "required": ["ready"]}
FORMAT = (pb.GuidedDecoding(json_schema=json.dumps(READY)), "response_format")


def keeper(name: str, answer: Guide | None = None) -> Callable[[str], bool]:
    """Whether the library takes a whole answer by the grammar of these tools."""
    guide = tool_guide(TOOLS, TOOL_FORMATS[name].tag, answer)
    assert guide is not None
    grammar = BYTES.load(BYTES.compile("structural_tag", guide[0].structural_tag))

    def is_kept(said: str) -> bool:
        matcher = grammar.start([EOS])
        return all(matcher.accept(byte) for byte in said.encode()) and matcher.accept(EOS)

    return is_kept


def calls_in(name: str, said: str) -> list[object]:
    """The arguments of the one call, as the backend reads it; none where it is text."""
    parser = TOOL_FORMATS[name].parser(TOOLS.schemas)
    pieces = [*parser.feed(said), *parser.finish()]
    arguments = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))
    return [json.loads(arguments)] if arguments else []


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_follow_the_schema_and_text_is_free(name: str) -> None:
    is_kept = keeper(name)
    assert is_kept("Plain {text} of 京都.")
    assert is_kept(ANSWERS[name].format(3))
    assert not is_kept(ANSWERS[name].format('"three"'))
    assert calls_in(name, ANSWERS[name].format(3)) == [{"city": "Kyoto", "days": 3}]


@pytest.mark.parametrize("name", ANSWERS)
def test_beside_a_format_an_answer_is_that_format_or_calls(name: str) -> None:
    is_kept = keeper(name, FORMAT)
    assert is_kept('{"ready": true}')
    assert is_kept(ANSWERS[name].format(3))
    assert is_kept(f"{ANSWERS[name].format(3)}\n{ANSWERS[name].format(4)}")
    assert not is_kept('{"ready":  true}')
    assert not is_kept('{"ready": 3}')
    assert not is_kept("Plain text.")
    assert not is_kept("")
    assert not is_kept(ANSWERS[name].format('"three"'))
    assert calls_in(name, '{"ready": true}') == []


def test_only_plain_json_is_allowed_beside_tools() -> None:
    for guide in (
        pb.GuidedDecoding(regex="a"),
        pb.GuidedDecoding(json_object=True, backend="xgrammar"),
        pb.GuidedDecoding(json_object=True, whitespace_pattern=""),
    ):
        with pytest.raises(InvalidBody) as refusal:
            tool_guide(TOOLS, TOOL_FORMATS["hermes"].tag, (guide, "guided_regex"))
        assert refusal.value.field == "guided_regex"


@pytest.mark.parametrize("choice", [{"is_required": True}, {"only": "go_to"}])
def test_where_calls_must_come_their_grammar_is_one_that_every_engine_takes(
    choice: dict[str, object],
) -> None:
    guide = tool_guide(replace(TOOLS, **choice), None, FORMAT)
    assert guide is not None
    assert [field.name for field, _ in guide[0].ListFields()] == ["json_schema"]
    assert "ready" not in guide[0].json_schema
