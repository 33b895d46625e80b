"""What a run is given besides the backend: which cases are drawn, and how many. Draws nothing."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from enginewire.conformance.session.run_options import count

SEED: Final = 1
CASES: Final = 300
"""Drawn by default: few enough to add a few seconds to a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """`case`: the only one, as JSON; empty where they are drawn."""

    seed: int = SEED
    cases: int = CASES
    case: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say it."""
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"draws cases (default {SEED})")
    parser.add_argument(
        "--cases", type=count, default=CASES, metavar="N", help=f"cases that are drawn (default {CASES})"
    )
    parser.add_argument("--case", default="", metavar="JSON", help="this case alone, as a report has it")


def run_options(options: argparse.Namespace) -> RunOptions:
    """The options as one value."""
    return RunOptions(seed=options.seed, cases=options.cases, case=options.case)


def words(options: argparse.Namespace) -> list[str]:
    """Those that draw the same cases again; none for the defaults."""
    names = {"--seed": (options.seed, SEED), "--cases": (options.cases, CASES), "--case": (options.case, "")}
    return [word for name, (value, usual) in names.items() if value != usual for word in (name, str(value))]
