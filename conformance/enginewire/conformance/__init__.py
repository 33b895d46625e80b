"""The conformance kit: judges any server of `enginewire.v1`. Depends on grpcio and protobuf only.

From Python: `judge` for a server that runs, `engine_conformance` for servers that a test can start,
`render` for a report a human can read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginewire.conformance.judging import engine_conformance, judge
    from enginewire.conformance.report.human import render

__all__ = ["engine_conformance", "judge", "render"]


def __getattr__(name: str) -> object:
    """Load on first use: pytest loads this package with its plugin in runs that never need it."""
    if name == "render":
        from enginewire.conformance.report.human import render

        return render
    if name in __all__:
        from enginewire.conformance import judging

        return getattr(judging, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
