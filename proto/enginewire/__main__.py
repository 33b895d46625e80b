"""`python -m enginewire` is the `enginewire` command."""

import sys

from enginewire.cli import main

if __name__ == "__main__":
    sys.exit(main())
