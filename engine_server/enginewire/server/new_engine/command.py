"""The `enginewire new-engine` command: writes an engine in Python that serves and that the kit passes.

The files of `template/` are the text; the engine is the one that docs/writing-an-engine.md shows. Knows
nothing about what an engine is.
"""

from __future__ import annotations

import argparse
import keyword
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Final

from enginewire.program import program

EXIT_USAGE: Final = 2
LANGUAGES: Final = ("python",)
NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
TEMPLATES: Final = Path(__file__).with_name("template")


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Write the files into a new folder, here; returns 0, or 2 with a message when nothing was written."""
    given = make_parser().parse_args(argv)
    folder = Path(given.name)
    try:
        # Before the name is looked at: Python takes the folder for a module where it looks here.
        if os.path.lexists(folder):
            raise ValueError("exists already")
        files = files_of(given.name)
        folder.mkdir()
    except (ValueError, OSError) as error:
        print(f"enginewire new-engine: {given.name}: {error}; nothing was written", file=sys.stderr)
        return EXIT_USAGE
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)
    print(f"\n{folder / 'README.md'} says how to run it.")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The parser of its arguments."""
    parser = argparse.ArgumentParser(
        prog="enginewire new-engine",
        description="Write the files of a new engine, which serves at once, into a new folder.",
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="of the engine and of the folder, such as my-engine")
    parser.add_argument(
        "--language",
        choices=LANGUAGES,
        default=LANGUAGES[0],
        help="of the engine; docs/generating-stubs.md has the others (default: %(default)s)",
    )
    return parser


def files_of(name: str) -> Mapping[str, str]:
    """The text of each file of an engine, by the name of the file. Raises ValueError for what is no name."""
    if not NAME.fullmatch(name):
        raise ValueError("allowed are small letters, digits, and - or _ between them, with a letter first")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module == "conftest":
        raise ValueError(f"{module} is a word of Python's or pytest's own")
    if find_spec(module) is not None:
        raise ValueError(f"a Python module {module} is installed already, and this one would hide it")
    words = {"name": name, "module": module, "engine_class": class_of(module)}
    texts = {path.stem: Template(path.read_text()).substitute(words) for path in TEMPLATES.glob("*.in")}
    return {f"{module}.py" if file == "engine.py" else file: text for file, text in sorted(texts.items())}


def class_of(module: str) -> str:
    """The name of the engine's class: `my_model` has a `MyModelEngine`."""
    words = "".join(word.capitalize() for word in module.split("_"))
    return words if words.endswith("Engine") else f"{words}Engine"


if __name__ == "__main__":
    sys.exit(main())
