"""Keeps the tables of a Markdown page equal to the options they describe.

`python -m enginewire.options.flags_page docs/flags.md` rewrites everything between the lines
`<!-- options: module:Class -->` and `<!-- end -->`; the module may have an ENV_PREFIX of its own. Knows
nothing about which classes there are.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enginewire.options.declaration import Option, options_of
from enginewire.options.loading import ENV_PREFIX

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SECTION: Final = re.compile(r"(<!-- options: ([\w.]+):(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS: Final = ("Flag", "Environment", "Default", "Meaning", "Contract field")


def filled(page: str) -> str:
    """The page with every table as the options are now."""
    return SECTION.sub(lambda match: f"{match[1]}{_named_table(match[2], match[3])}{match[4]}", page)


def _named_table(module_name: str, class_name: str) -> str:
    module = importlib.import_module(module_name)
    return table(getattr(module, class_name), getattr(module, "ENV_PREFIX", ENV_PREFIX))


def table(options_class: type[DataclassInstance], env_prefix: str = ENV_PREFIX) -> str:
    """A Markdown table of the options that this class adds to those it inherits."""
    bases = [base for base in options_class.__bases__ if is_dataclass(base)]
    inherited = {each.name for base in bases for each in fields(base)}
    own = [option for option in options_of(options_class) if option.name not in inherited]
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(option, env_prefix) for option in own)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(option: Option, env_prefix: str) -> Sequence[str]:
    names = ((option.name.upper(),) if option.declaration.positional else ()) + option.flags
    return (
        ", ".join(_code(name) for name in names),
        _code(option.variable(env_prefix)),
        _code(option.shown_default),
        _meaning(option).replace("|", "\\|"),
        _code(option.declaration.contract),
    )


def _meaning(option: Option) -> str:
    notes = [
        option.declaration.unit,
        f"one of {', '.join(option.kind.choices)}" if option.kind.choices else "",
        "repeatable; separated by commas in the environment" if option.kind.many else "",
        "secret" if option.declaration.secret else "",
    ]
    given = "; ".join(note for note in notes if note)
    return f"{option.declaration.meaning} ({given})" if given else option.declaration.meaning


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the pages named as arguments."""
    for name in sys.argv[1:] if argv is None else argv:
        page = Path(name)
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
