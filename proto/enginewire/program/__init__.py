"""What every program of ours runs in: standard streams that are open, a quiet end, an event loop, log lines.

Knows nothing about what the programs do. Import it before grpc.
"""

import os

from enginewire.program.streams import (
    EXIT_INTERRUPTED,
    EXIT_NOT_READ,
    program,
    reader_may_leave,
)

__all__ = ["EXIT_INTERRUPTED", "EXIT_NOT_READ", "program", "reader_may_leave"]

# Our programs start others while gRPC is at work, and uvloop does so with fork(). gRPC's handlers of that can
# abort the child before it has become the other program. They are for children that go on without exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
