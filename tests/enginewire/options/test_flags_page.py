from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from enginewire.options import option
from enginewire.options.flags_page import filled, main, table
from tests.enginewire.options.toy import Toy
from tests.repository import ROOT

PAGE = ROOT / "docs" / "flags.md"


def test_the_tables_of_the_docs_are_the_options_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page) == page, "run python -m enginewire.options.flags_page docs/flags.md"
    assert page.count("<!-- options: ") == 13


def test_a_row_says_flag_variable_default_meaning_and_contract_field() -> None:
    rows = table(Toy).splitlines()
    assert "| `MODEL`, `--model`, `--model-path` | `TOY_MODEL` | `tiny` | model to serve |  |" in rows
    assert "| `--seqs` | `TOY_SEQS` | `64` | sequences | `EngineConfig.max_num_seqs` |" in rows
    assert "| `--memory` | `TOY_MEMORY` | `4096` | memory \\| cache (bytes) |  |" in rows
    assert "| `--color` | `TOY_COLOR` | `red` | 100% colour (one of red, blue) |  |" in rows
    assert "| `--api-key` | `TOY_API_KEY` |  | key (secret) |  |" in rows


def test_a_table_leaves_out_what_another_shows() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Child(Toy):
        more: bool = option(True, "more")

    assert table(Child, {Toy}).splitlines()[2:] == ["| `--more` | `TOY_MORE` | `true` | more |  |"]


def test_the_command_fills_a_page_in_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- options: tests.enginewire.options.toy:Toy -->\nstale\n<!-- end -->\nrest\n")
    assert main([str(page)]) == 0
    assert page.read_text().endswith("|\n<!-- end -->\nrest\n")
    assert "stale" not in page.read_text()
