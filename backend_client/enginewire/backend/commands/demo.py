"""`enginewire demo`: three questions to the model that ships with the project, without a network.

Holds the command line; what is shown is in `demo_show`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from enginewire.backend.commands.options import DemoOptions
from enginewire.options import load

EXIT_FAILED: Final = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Show the demo; returns 0, or 1 with a message."""
    description = "Talk to the built-in model through an engine server and a backend."
    options = load(DemoOptions, argv, prog="enginewire demo", description=description).options
    # Past this line the demo is really going to run: now the heavy imports may come.
    from enginewire.backend.commands.demo_show import DemoFailed, Screen, show
    from enginewire.backend.commands.life import run_until_signal
    from enginewire.backend.processes.sidecar import SidecarDied

    try:
        return run_until_signal(show(options, Screen(sys.stdout)))
    except (DemoFailed, SidecarDied) as error:
        print(f"enginewire demo: {error}", file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
