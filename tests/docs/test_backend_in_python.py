"""The code of the page runs as it stands there."""

from __future__ import annotations

import re

from enginewire.backend import Backend, BackendOutput, EngineClient
from tests.backend.asking import ask
from tests.backend.conftest import engine_server, vocabulary
from tests.repository import ROOT

__all__ = ["engine_server", "vocabulary"]

PAGE = ROOT / "docs" / "backend-in-python.md"


def code_of_the_page() -> dict[str, object]:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)  # our own page
    return names


async def test_an_answer_comes_from_one_of_the_engines(engine_server):
    target = (await engine_server()).server.target
    # The mocker says the prompt, an end of sequence, and the prompt again.
    assert await code_of_the_page()["answer"]([target], "héllo") == "héllo"


async def test_a_function_gets_everything_in_order(engine_server, vocabulary):
    outputs: list[BackendOutput] = []
    async with EngineClient((await engine_server(mocker_itl_ms=1.0)).server.target) as client:
        await code_of_the_page()["stream"](Backend(client, vocabulary), ask(b"abcdefgh", 8), outputs.append)
    assert "".join(output.text for output in outputs) == "abcdefgh"
    assert outputs[-1].is_terminal
