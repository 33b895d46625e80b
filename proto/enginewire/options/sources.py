"""Where values come from: flags, environment variables and a config file.

Each reader returns `Found` values by option name, already of the right type. Knows nothing about
precedence.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeVar

from enginewire.options.declaration import Option
from enginewire.options.kinds import OptionError
from enginewire.version import __version__

Raw = TypeVar("Raw")
POSITIONAL: Final = "positional "
"""Prefix of a positional's place in the namespace: no option's name has a space."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value and where it was found, in words such as `--port` or `ENGINEWIRE_PORT`."""

    value: object
    source: str


def make_parser(
    options: Sequence[Option], *, prog: str, description: str, env_prefix: str
) -> argparse.ArgumentParser:
    """A parser that leaves values as text: every source shares the same conversion and messages."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=_usage(options),
        description=description,
        epilog=f"Every option can also be set as {env_prefix}<NAME> or in the --config file."
        " Flags win over the environment, the environment over the file.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="read options from a TOML, JSON or YAML file"
    )
    parser.add_argument(
        "--dump-config", action="store_true", help="print every value and its source as TOML, then exit"
    )
    section: argparse._ActionsContainer = parser
    sections: dict[str, argparse._ActionsContainer] = {}
    for option in options:
        if heading := option.declaration.heading:
            section = sections.get(heading) or parser.add_argument_group(heading)
            sections[heading] = section
        _add(section, option)
    return parser


def _usage(options: Iterable[Option]) -> str:
    positionals = [f" [{option.name.upper()}]" for option in options if option.declaration.positional]
    return f"%(prog)s [options]{''.join(positionals)}"


def _add(section: argparse._ActionsContainer, option: Option) -> None:
    text = _help(option)
    if option.declaration.positional:
        section.add_argument(POSITIONAL + option.name, nargs="?", help=argparse.SUPPRESS)
    if option.kind.base is bool:
        section.add_argument(
            *option.flags, dest=option.name, action=argparse.BooleanOptionalAction, help=text
        )
        return
    metavar = f"{{{','.join(option.kind.choices)}}}" if option.kind.choices else _metavar(option)
    action = "append" if option.kind.many else "store"
    section.add_argument(*option.flags, dest=option.name, action=action, metavar=metavar, help=text)


def _metavar(option: Option) -> str:
    return (option.declaration.unit or option.kind.base.__name__).upper()


def _help(option: Option) -> str:
    default = f" (default: {option.shown_default})" if option.shown_default else ""
    repeatable = "; repeatable" if option.kind.many else ""
    bare = f"; also without the flag, as {option.name.upper()}" if option.declaration.positional else ""
    return f"{option.declaration.meaning}{bare}{repeatable}{default}".replace("%", "%%")


def from_flags(options: Iterable[Option], namespace: argparse.Namespace) -> dict[str, Found]:
    """What was given on the command line. Raises OptionError."""
    found: dict[str, Found] = {}
    given: Mapping[str, object] = vars(namespace)
    for option in options:
        if POSITIONAL + option.name in given:
            if option.name in given:
                raise OptionError(f"{option.flag}: given twice, with and without the flag")
            found[option.name] = _from_flag(option, given[POSITIONAL + option.name], option.name.upper())
        elif option.name in given:
            found[option.name] = _from_flag(option, given[option.name], option.flag)
    return found


def _from_flag(option: Option, raw: object, source: str) -> Found:
    if isinstance(raw, bool):
        return Found(raw, source)
    if isinstance(raw, list):
        return _found(option, source, option.kind.from_items, raw)
    return _found(option, source, option.kind.from_text, str(raw))


def from_environment(
    options: Iterable[Option], prefix: str, environment: Mapping[str, str]
) -> dict[str, Found]:
    """What the environment sets; an empty variable counts as unset. Raises OptionError."""
    found: dict[str, Found] = {}
    for option in options:
        variable = option.variable(prefix)
        if text := environment.get(variable, ""):
            found[option.name] = _found(option, variable, option.kind.from_text, text)
    return found


def from_file(options: Iterable[Option], path: Path) -> dict[str, Found]:
    """What a config file sets; keys are names with dashes or underscores. Raises OptionError."""
    by_name = {option.name: option for option in options}
    found: dict[str, Found] = {}
    for key, value in _document(path).items():
        name = str(key).replace("-", "_")
        if name not in by_name:
            raise OptionError(f"{path}: unknown option {key!r}; {_suggestion(name, list(by_name))}")
        if name in found:
            raise OptionError(f"{path}: {name} is set twice")
        source = f"{path}: {name}"
        found[name] = _found(by_name[name], source, by_name[name].kind.from_document, value)
    return found


def _found(option: Option, source: str, convert: Callable[[Raw], object], raw: Raw) -> Found:
    try:
        return Found(convert(raw), source)
    except OptionError as error:
        reason = f"must be {option.kind.allowed()}" if option.declaration.secret else str(error)
        raise OptionError(f"{source}: {reason}") from error


def _suggestion(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}allowed: {', '.join(known)}"


def _document(path: Path) -> dict[object, object]:
    """The top-level mapping of a config file. Raises OptionError."""
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise OptionError(f"--config: {path} must end in one of {', '.join(_READERS)}")
    try:
        document = read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--config: {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"--config: {path} cannot be parsed: {error}") from error
    if not isinstance(document, dict):
        raise OptionError(f"--config: {path} must hold options by name at its top level")
    return document


def _yaml(text: str) -> object:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        raise ValueError("YAML needs PyYAML (pip install pyyaml); TOML and JSON need nothing") from error
    try:
        document: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return document


_READERS: Final[dict[str, Callable[[str], object]]] = {
    ".toml": tomllib.loads,
    ".json": json.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
}
