"""What a run is given besides its target: a second engine, adapters to load, the seed of what is drawn.

None of it can be asked of the target. Opens nothing.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from enginewire.conformance.requirements.profiles import BARE
from enginewire.conformance.wire.violation import NotApplicable

SEED: Final = 240
"""Of the first 400 seeds one whose cases have the most pairs of options."""
CASES: Final = 64
"""Drawn by default: few enough to add little to a run."""

COMPANIES: Final = 2
"""How often a check that passed is judged once more, each time beside other options."""

DIFFERENT: Final = 8
"""Companies of a run, an even number: checks in the same company share what they look at."""

PATIENCE: Final = 2.0
"""Seconds. At a token per second a run takes about a quarter of an hour with it."""

READY_SECONDS: Final = 120.0
"""For a model to be loaded."""

ROLES: Final = ("read", "infer", "admin")
"""Of keys, each with what those before it may do."""

PAIR: Final = frozenset({"prefill", "disaggregation"})
"""The gates that hold when there are a prefill and a decode engine; that of `decode` is the target's role."""

PAIR_RUN: Final = ("DIS-*", "DRN-09", "PRB-01/*", "INF-01", "INF-02", "INF-06", "INF-07", "INF-10", "INF-12")
"""What runs by default against a pair: the requirements that need no answer of the target alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Empty where the user gave nothing. `adapters`: as LoadAdapter takes them; `cases`: how many to draw.

    `patience`: seconds for one answer that could be shorter; a slower target is asked for fewer tokens.
    `ready_seconds`: how long a target may still load.
    """

    prefill: str = ""
    adapters: tuple[str, ...] = ()
    metrics_url: str = ""
    seed: int = SEED
    cases: int = CASES
    companies: int = COMPANIES
    patience: float = PATIENCE
    ready_seconds: float = READY_SECONDS
    keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Keys of the target by role: read, infer, admin. Secret."""
    expired_certificate: Path | None = None
    """Of an authority that the target believes, with its key, and out of date."""
    is_bare: bool = False
    """The target gets requests that were checked before, and no others."""

    def __post_init__(self) -> None:
        """Raises ValueError for more companies than there are."""
        if not 0 <= self.companies <= DIFFERENT:
            raise ValueError(f"companies: 0 to {DIFFERENT}, got {self.companies}")

    def sources(self, count: int) -> tuple[str, ...]:
        """That many different adapters; NotApplicable with fewer."""
        if len(self.adapters) < count:
            raise NotApplicable(f"needs --adapter with a source the target can load, {count} times")
        return self.adapters[:count]


USUAL: Final = RunOptions()
"""What every run has unless it is said."""

DRAWING: Final = ("seed", "cases", "companies", "patience")
"""The options that decide what is drawn and how much is asked."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say it."""
    group = parser.add_argument_group("beside the target")
    group.add_argument(
        "--prefill", metavar="ADDRESS", default="", help="the engine of role PREFILL of a pair"
    )
    group.add_argument(
        "--decode", metavar="ADDRESS", default="", help="the engine of role DECODE: the target"
    )
    group.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="SOURCE",
        help="an adapter that LoadAdapter can load; two are needed",
    )
    group.add_argument(
        "--metrics-url", default="", metavar="URL", help="where the target exports metrics as Prometheus text"
    )
    group.add_argument(
        "--tls-expired-cert",
        type=Path,
        metavar="PEM",
        help="an expired certificate of an authority of the target, with its key, for the profile tls",
    )
    group.add_argument(
        "--otlp-listen",
        default="",
        metavar="ADDRESS",
        help="host:port where the kit takes the spans that the target sends, for the profile tracing",
    )
    for role in ROLES:
        variable = f"ENGINEWIRE_CONFORMANCE_{role.upper()}_KEY"
        group.add_argument(
            f"--{role}-key",
            default=os.environ.get(variable, ""),
            metavar="KEY",
            help=f"a key of the target with the role {role}, for the profile auth; better set as {variable}",
        )
    group.add_argument(
        "--seed", type=int, default=SEED, metavar="N", help=f"draws the mixed cases (default {SEED})"
    )
    group.add_argument(
        "--patience",
        type=_seconds,
        default=PATIENCE,
        metavar="S",
        help=f"for one answer of a slow target, which is asked for fewer tokens (default {PATIENCE:g})",
    )
    group.add_argument(
        "--cases", type=count, default=CASES, metavar="N", help=f"cases that are drawn (default {CASES})"
    )
    group.add_argument(
        "--companies",
        type=_companies,
        default=COMPANIES,
        metavar="N",
        help=f"how often a check that passed is judged again beside drawn options (default {COMPANIES})",
    )


def adopt(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """The target of a pair is its decode engine. Half a pair is a mistake, which ends the program."""
    if bool(options.prefill) != bool(options.decode):
        parser.error("--prefill and --decode belong together")
    if options.decode and (options.target or options.launch):
        parser.error("--decode is a target: it excludes --target and --launch")
    if options.decode:
        options.target = options.decode
        if not (options.run or options.profile):
            options.run = list(PAIR_RUN)


def run_options(options: argparse.Namespace) -> RunOptions:
    """The options as one value."""
    return RunOptions(
        prefill=options.prefill,
        adapters=tuple(options.adapter),
        metrics_url=options.metrics_url,
        seed=options.seed,
        cases=options.cases,
        companies=options.companies,
        patience=options.patience,
        ready_seconds=options.ready_timeout,
        keys=tuple((role, key) for role in ROLES if (key := getattr(options, f"{role}_key"))),
        expired_certificate=options.tls_expired_cert,
        is_bare=any(BARE in names.split(",") for names in options.profile),
    )


def drawn(options: argparse.Namespace) -> list[str]:
    """The words that draw the same cases again, and ask as much; none for those of every run."""
    asked = [(name, getattr(options, name), getattr(USUAL, name)) for name in DRAWING]
    return [word for name, value, usual in asked if value != usual for word in (f"--{name}", _shown(value))]


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("above 0")
    return number


def _companies(text: str) -> int:
    number = count(text)
    if number > DIFFERENT:
        raise argparse.ArgumentTypeError(f"at most {DIFFERENT}")
    return number


def count(text: str) -> int:
    """A number of an option, at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("at least 0")
    return number
