"""The `enginewire-conformance` command. This release has no checks yet: it says so, and never succeeds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from enginewire import __version__

EXIT_NOTHING_RAN = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Say that no check is part of this release; returns the kit's code for "nothing ran"."""
    parser = argparse.ArgumentParser(
        prog="enginewire-conformance",
        description="Judge a running server of enginewire.v1. This release has no checks yet.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.parse_args(argv)
    print("enginewire-conformance: this release has no checks yet; nothing ran", file=sys.stderr)
    return EXIT_NOTHING_RAN


if __name__ == "__main__":
    sys.exit(main())
