"""`enginewire bench`: reads the options; everything else is in `command`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from enginewire.backend.bench.options import METRICS, BenchOptions
from enginewire.options import load

PROG = "enginewire bench"
LIMIT = re.compile(rf"({'|'.join(METRICS)}):\S+")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    description = "Send a load of requests and print how long the answers took."
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = load(BenchOptions, with_every_limit(arguments), prog=PROG, description=description).options
    if options.is_http and find_spec("httpx2") is None:
        print(f"{PROG}: --api {options.api} needs httpx2: pip install 'enginewire[bench]'", file=sys.stderr)
        return 1
    # Past this line it is really going to run: now the heavy imports may come.
    from enginewire.backend.bench.command import run

    return run(options)


def with_every_limit(arguments: Sequence[str]) -> list[str]:
    """`--goodput ttft:200 tpot:50`, as vLLM takes it, with the flag before each limit."""
    spelled: list[str] = []
    for argument in arguments:
        if LIMIT.fullmatch(argument) and spelled and LIMIT.fullmatch(spelled[-1]):
            spelled.append("--goodput")
        spelled.append(argument)
    return spelled


if __name__ == "__main__":
    sys.exit(main())
