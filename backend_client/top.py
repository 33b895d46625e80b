"""`enginewire top`: how busy engines are, in a terminal or as JSON for scripts.

Holds the command line; what is shown is in `top_show`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from enginewire.addresses import default_socket
from enginewire.options import computed, load, option
from enginewire.trusted_paths import user_id

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """Options of `enginewire top`."""

    ENV_PREFIX: ClassVar[str] = "ENGINEWIRE_TOP_"

    target: tuple[str, ...] = option(
        computed(lambda: (f"unix:{default_socket('engine')}",), "unix:<the engine's default --uds>"),
        "an engine to watch: a gRPC name such as unix:/run/engine.sock or localhost:50051",
    )
    socket_owner: str = option(
        "", "another user, besides this one and root, who may own an engine's Unix socket: a name or a number"
    )
    once: bool = option(False, "look once and end, with 1 when an engine did not answer")
    json: bool = option(False, "print a line of JSON per look instead of a table")
    interval: float = option(0.5, "how often to look", unit="s", at_least=0.05)
    timeout: float = option(2.0, "how long an engine may take to answer --once", unit="s", at_least=0.05)

    def __post_init__(self) -> None:
        user_id(self.socket_owner)


def main(argv: Sequence[str] | None = None) -> int:
    """Watch until Ctrl-C, which is how to leave; returns the exit code."""
    description = "Show how busy engines are: requests, KV blocks, tokens per second."
    options = load(TopOptions, argv, prog="enginewire top", description=description).options
    # Past this line it is really going to run: now the heavy imports may come.
    from rich.console import Console

    from backend_client.frontends.commands import run_until_signal
    from backend_client.top_show import look_once, watch

    console = Console()
    # Without a terminal there is nobody to watch: one look says all, unless lines were asked for.
    is_once = options.once or not (console.is_terminal or options.json)
    exit_code = run_until_signal(look_once(options, console) if is_once else watch(options, console))
    return 0 if exit_code == EXIT_INTERRUPTED else exit_code


if __name__ == "__main__":
    sys.exit(main())
