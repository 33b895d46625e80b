"""The `enginewire-conformance` command. The checks arrive with a later release; see docs/conformance.md."""

from __future__ import annotations

import sys


def main() -> int:
    """Say what is missing and exit with the kit's "nothing ran" code, never with success."""
    if "--version" in sys.argv[1:]:
        from enginewire import __version__

        print(f"enginewire-conformance {__version__}")
        return 0
    print("enginewire-conformance: no checks are part of this release yet; nothing ran", file=sys.stderr)
    return 0 if "--help" in sys.argv[1:] else 5


if __name__ == "__main__":
    sys.exit(main())
