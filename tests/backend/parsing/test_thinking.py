from __future__ import annotations

from random import Random

import pytest

from enginewire.backend.parsing.delta import AnswerReader, call_id
from enginewire.backend.parsing.formats import THINKING, TOOL_FORMATS
from enginewire.backend.parsing.thinking import ThinkingParser
from tests.backend.parsing.reading import Read, cut, read


@pytest.mark.parametrize(
    ("name", "prompt", "text", "expected"),
    [
        ("qwen3", "assistant\n", "<think>\nhm\n\nok\n</think>\n\nHi", Read("hm\n\nok", "Hi")),
        ("qwen3", "assistant\n<think>\n", "hm\n</think> Hi ", Read("hm", "Hi ")),
        ("qwen3", "assistant\n<think>\n", "<think>\nhm\n</think>Hi", Read("hm", "Hi")),
        ("qwen3", "<think>\n\n</think>\n\n", "Hi <think>x</think>", Read("", "Hi <think>x</think>")),
        ("qwen3", "", " <thin", Read("", " <thin")),
        ("qwen3", "", " Hi", Read("", " Hi")),
        ("qwen3", "<think>", "cut in the mid</thi", Read("cut in the mid</thi", "")),
        ("qwen3", "", "<think></think>", Read("", "")),
        ("deepseek_r1", "", "hm</think>Hi", Read("hm", "Hi")),
        ("deepseek_r1", "<think></think>", "Hi", Read("", "Hi")),
        ("mistral", "", "[THINK]hm[/THINK]Hi", Read("hm", "Hi")),
        (
            "qwen3",
            "<think>",
            'a <tool_call>{"name":"f"}</tool_call></think><tool_call>{"name":"g"}</tool_call>',
            Read('a <tool_call>{"name":"f"}</tool_call>', "", [("g", "{}")]),
        ),
    ],
)
def test_thinking_is_told_apart_however_it_is_cut(name: str, prompt: str, text: str, expected: Read) -> None:
    for seed in range(100):
        markers = THINKING[name]
        reader = AnswerReader(
            ThinkingParser(markers, is_open=markers.is_open_after(prompt)),
            TOOL_FORMATS["hermes"].parser({}),
            new_id=call_id,
        )
        assert read(reader, cut(text, Random(seed)) if seed else [text]) == expected, seed
