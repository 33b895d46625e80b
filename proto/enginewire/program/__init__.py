"""What every program of ours runs in: standard streams that are open, a quiet end, an event loop, log lines.

Knows nothing about what the programs do.
"""

from enginewire.program.streams import (
    EXIT_INTERRUPTED,
    EXIT_NOT_READ,
    program,
    reader_may_leave,
)

__all__ = ["EXIT_INTERRUPTED", "EXIT_NOT_READ", "program", "reader_may_leave"]
