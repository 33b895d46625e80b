"""From the four sources of options to one frozen value, and the print-out of where each came from.

Flags win over the environment, the environment over the config file, the file over the default.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from enginewire.options.declaration import MASK, Option, env_prefix_of, options_of
from enginewire.options.kinds import OptionError
from enginewire.options.sources import Found, from_environment, from_file, from_flags, make_parser

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

O = TypeVar("O", bound="DataclassInstance")  # noqa: E741
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[O]):
    """Options and, by name, where each value that is not a default came from."""

    options: O
    sources: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[str, ...] = ()
    """Arguments that are no options of this program, when it keeps them for another one."""


def load(
    options_class: type[O],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    description: str,
    env_prefix: str | None = None,
    environment: Mapping[str, str] = os.environ,
    resolve: Callable[[Loaded[O]], O] | None = None,
    keeps_rest: bool = False,
) -> Loaded[O]:
    """Read the options of a program; `argv` is without the program's name, None means sys.argv.

    `env_prefix` begins the names of environment variables; None means that of the class.
    With `keeps_rest` arguments that are no option of this class are left in `Loaded.rest`.
    `resolve` settles what depends on which options were given; it and the dataclass may raise
    OptionError. Wrong options exit with 2 and one line on stderr; `--help`, `--version` and
    `--dump-config` print and exit with 0.
    """
    declared = options_of(options_class)
    prefix = env_prefix_of(options_class) if env_prefix is None else env_prefix
    parser = make_parser(declared, prog=prog, description=description, env_prefix=prefix)
    namespace, rest = parser.parse_known_args(argv) if keeps_rest else (parser.parse_args(argv), [])
    try:
        found = from_file(declared, namespace.config) if "config" in namespace else {}
        found |= from_environment(declared, prefix, environment)
        found |= from_flags(declared, namespace)
        loaded = _build(options_class, found, tuple(rest), resolve)
    except OptionError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    if "dump_config" in namespace:
        print(dump(declared, loaded))
        raise SystemExit(0)
    return loaded


def _build(
    options_class: type[O],
    found: Mapping[str, Found],
    rest: tuple[str, ...],
    resolve: Callable[[Loaded[O]], O] | None,
) -> Loaded[O]:
    options = options_class(**{name: each.value for name, each in found.items()})
    loaded = Loaded(options, {name: each.source for name, each in found.items()}, rest)
    return loaded if resolve is None else replace(loaded, options=resolve(loaded))


def dump(declared: Iterable[Option], loaded: Loaded[O]) -> str:
    """Every value with its source, as TOML that `--config` reads back to the same options.

    What was not given is a comment, and so are secrets, masked.
    """
    return "\n".join(_dump_line(option, loaded) for option in declared)


def _dump_line(option: Option, loaded: Loaded[O]) -> str:
    value = getattr(loaded.options, option.name)
    source = loaded.sources.get(option.name, DEFAULT)
    shown = MASK if option.declaration.secret and value else "unset" if value is None else _toml(value)
    comment = "# " if source == DEFAULT or shown in (MASK, "unset") else ""
    return f"{comment}{option.name} = {shown}  # {source}"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    # JSON's escapes are TOML's, except that TOML also wants DEL escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
