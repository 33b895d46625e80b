"""`enginewire top`: how busy engines are, in a terminal or as JSON for scripts.

Holds the command line; what is shown is in `top_show`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Final

from enginewire.backend.commands.options import TopOptions
from enginewire.options import load

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Watch until Ctrl-C, which is how to leave; returns the exit code."""
    description = "Show how busy engines are: requests, KV blocks, tokens per second."
    options = load(TopOptions, argv, prog="enginewire top", description=description).options
    # Past this line it is really going to run: now the heavy imports may come.
    from rich.console import Console

    from enginewire.backend.commands.life import run_until_signal
    from enginewire.backend.commands.top_show import look_once, watch

    console = Console()
    # Without a terminal there is nobody to watch: one look says all, unless lines were asked for.
    is_once = options.once or not (console.is_terminal or options.json)
    exit_code = run_until_signal(look_once(options, console) if is_once else watch(options, console))
    return 0 if exit_code == EXIT_INTERRUPTED else exit_code


if __name__ == "__main__":
    sys.exit(main())
