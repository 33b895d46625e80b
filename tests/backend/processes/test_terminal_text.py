from __future__ import annotations

import pytest

from enginewire.backend.processes.terminal_text import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("日本\n\t🧑‍💻 é", "日本\n\t🧑‍💻 é"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\rb\x9b2J\x7f", "a\\rb\\x9b2J\\x7f"),
    ],
)
def test_only_what_could_steer_a_terminal_is_spelled_out(text: str, shown: str) -> None:
    assert harmless(text) == shown
