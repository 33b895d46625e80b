"""How an option is declared: `option` as the value of a dataclass field, and what reads it back.

Knows nothing about where values come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast, get_type_hints

from enginewire.options.kinds import Kind, kind_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
MASK: Final = "***"
BYTES: Final = "bytes"
ENV_PREFIX: Final = "ENGINEWIRE_"


@dataclass(frozen=True, slots=True)
class Computed(Generic[T]):
    """What `computed` leaves in place of a default."""

    make: Callable[[], T]
    shown: str


def computed(make: Callable[[], T], shown: str) -> T:
    """A default that depends on the machine; `shown` stands for it in help and docs."""
    # Typed as what it stands for, as dataclasses.field is: `option` takes it apart again.
    return cast(T, Computed(make, shown))


@dataclass(frozen=True, slots=True)
class Declaration:
    """What was said about an option beside its name, type and default."""

    meaning: str
    aliases: tuple[str, ...] = ()
    unit: str = ""
    heading: str = ""
    contract: str = ""
    at_least: float | None = None
    at_most: float | None = None
    positional: bool = False
    secret: bool = False
    shown_default: str = ""


def option(
    default: T,
    meaning: str,
    *,
    aliases: Sequence[str] = (),
    unit: str = "",
    heading: str = "",
    contract: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
    positional: bool = False,
    secret: bool = False,
) -> T:
    """A field of an options dataclass. The flag is the field's name with dashes.

    `heading` begins a section of the help, or goes on with it. `unit` is that of a number ("s", "tokens";
    "bytes" also allows 8MiB), `contract` the field of `enginewire.v1` that shows the value. `positional` also
    takes the value without its flag. A secret is masked wherever options are printed.
    """
    declaration = Declaration(
        meaning=meaning,
        aliases=tuple(aliases),
        unit=unit,
        heading=heading,
        contract=contract,
        at_least=at_least,
        at_most=at_most,
        positional=positional,
        secret=secret,
        shown_default=default.shown if isinstance(default, Computed) else "",
    )
    metadata = {"option": declaration}
    if isinstance(default, Computed):
        made: T = field(default_factory=default.make, repr=not secret, metadata=metadata)
        return made
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option: everything that is known without a value."""

    name: str
    kind: Kind
    declaration: Declaration
    default: object

    @property
    def flag(self) -> str:
        """The flag, such as `--max-num-seqs`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def flags(self) -> tuple[str, ...]:
        """The flag and its aliases."""
        return (self.flag, *self.declaration.aliases)

    def variable(self, prefix: str) -> str:
        """The environment variable, such as `ENGINEWIRE_MAX_NUM_SEQS`."""
        return f"{prefix}{self.name.upper()}"

    @property
    def shown_default(self) -> str:
        """The default for people; the same on every machine."""
        if self.declaration.shown_default:
            return self.declaration.shown_default
        if self.default is None or self.default == () or self.default == "":
            return ""
        return str(self.default).lower() if self.kind.base is bool else str(self.default)


def env_prefix_of(options_class: type[DataclassInstance]) -> str:
    """How the environment variables of a class begin: its ENV_PREFIX, when it has one."""
    prefix: str = getattr(options_class, "ENV_PREFIX", ENV_PREFIX)
    return prefix


def options_of(options_class: type[DataclassInstance]) -> list[Option]:
    """The options a dataclass declares, in order."""
    hints = get_type_hints(options_class)
    return [
        _option(
            each.name, hints[each.name], each.metadata["option"], _default(each.default, each.default_factory)
        )
        for each in fields(options_class)
    ]


def _option(name: str, annotation: object, declaration: Declaration, default: object) -> Option:
    kind = kind_of(
        annotation,
        at_least=declaration.at_least,
        at_most=declaration.at_most,
        is_size=declaration.unit == BYTES,
    )
    return Option(name, kind, declaration, default)


def _default(default: object, factory: object) -> object:
    return default if default is not MISSING else factory() if callable(factory) else None
