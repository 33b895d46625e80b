"""What a backend writes for strict tools is a grammar that the engine's library keeps."""

from __future__ import annotations

import json

import pytest

from enginewire.backend.frontends.http_api.openai.tools.fields import AskedTools, Tool
from enginewire.backend.frontends.http_api.openai.tools.guide import tag_of
from enginewire.backend.parsing.formats import TOOL_FORMATS
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


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_follow_the_schema_and_text_is_free(name: str) -> None:
    tag = TOOL_FORMATS[name].tag
    assert tag is not None
    grammar = BYTES.load(BYTES.compile("structural_tag", json.dumps(tag_of(TOOLS, tag))))

    def is_kept(answer: str) -> bool:
        matcher = grammar.start([EOS])
        return all(matcher.accept(byte) for byte in answer.encode()) and matcher.accept(EOS)

    assert is_kept("Plain {text} of 京都.")
    assert is_kept(ANSWERS[name].format(3))
    assert not is_kept(ANSWERS[name].format('"three"'))
    parser = TOOL_FORMATS[name].parser(TOOLS.schemas)
    pieces = [*parser.feed(ANSWERS[name].format(3)), *parser.finish()]
    arguments = "".join(getattr(piece, "text", "") for piece in pieces)
    assert json.loads(arguments) == {"city": "Kyoto", "days": 3}
