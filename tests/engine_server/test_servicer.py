"""Generate, over a real socket: acceptance, answers, rejections."""

from __future__ import annotations

from tests.engine_server.serving import ask


async def test_generate_echoes_the_prompt_and_ends_with_usage(engine_server):
    serving = await engine_server()
    answer = await serving.generate(ask(prompt=b"hello", max_tokens=5))
    assert bytes(answer.tokens()) == b"hello"
    assert answer.usage() == (5, 5)
