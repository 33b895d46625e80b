"""The engine that docs/writing-an-engine.md shows really serves."""

from __future__ import annotations

import re
import types
from pathlib import Path

from engine_server.interface import LLMEngine
from engine_server.iterator_driver import IteratorDriver
from enginewire import v1 as pb
from tests.engine_server.serving import ask

PAGE = Path(__file__).parents[2] / "docs/writing-an-engine.md"


def documented_engine() -> LLMEngine:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    module = types.ModuleType("countdown")
    exec(code[1], module.__dict__)
    return module.CountdownEngine(None)


async def test_the_documented_engine_counts_down(engine_server):
    engine = documented_engine()
    assert isinstance(engine, LLMEngine)
    serving = await engine_server(engine=IteratorDriver(engine))
    answer = await serving.generate(ask("r", prompt=bytes([7, 9]), max_tokens=4))
    assert answer.tokens() == [8, 7, 6, 5]
    assert answer.finishes() == {0: pb.FINISH_REASON_LENGTH}
