"""Keeps the tables of a Markdown page equal to the options they describe.

`python -m enginewire.options.flags_page docs/flags.md` rewrites everything between the lines
`<!-- options: module:Class -->` and `<!-- end -->`. Knows nothing about which classes there are.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enginewire.options.declaration import Option, env_prefix_of, options_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SECTION: Final = re.compile(r"(<!-- options: ([\w.]+):(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS: Final = ("Flag", "Environment", "Default", "Meaning", "Contract field")


def filled(page: str) -> str:
    """The page with every table as the options are now."""
    shown = {_named(match[2], match[3]) for match in SECTION.finditer(page)}
    return SECTION.sub(lambda match: f"{match[1]}{table(_named(match[2], match[3]), shown)}{match[4]}", page)


def table(options_class: type[DataclassInstance], shown: Collection[type] = ()) -> str:
    """A Markdown table of the options of a class, without those it inherits from others that are shown."""
    bases = (base for base in options_class.__mro__[1:] if base in shown and is_dataclass(base))
    inherited = {each.name for base in bases for each in fields(base)}
    own = [option for option in options_of(options_class) if option.name not in inherited]
    prefix = env_prefix_of(options_class)
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(option, prefix) for option in own)]
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


def _named(module: str, name: str) -> type[DataclassInstance]:
    options_class: type[DataclassInstance] = getattr(importlib.import_module(module), name)
    return options_class


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the pages named as arguments."""
    for name in sys.argv[1:] if argv is None else argv:
        page = Path(name)
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
