"""The engine that README shows is the one that is run and judged."""

from __future__ import annotations

import re
from textwrap import dedent

from tests.repository import ROOT


def test_the_engine_in_readme_is_a_part_of_the_example() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    example = (ROOT / "examples" / "bare-python" / "engine.py").read_text()
    methods = re.split(r"\n(?=    async def |async def )", example)
    assert shown.strip() in [dedent(method).strip() for method in methods]
