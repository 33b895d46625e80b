"""Where a caller stands with its limits, in the headers of OpenAI's API, which its clients read."""

from __future__ import annotations

from collections.abc import Mapping

from enginewire.access.caller import caller
from enginewire.access.meters import Meters, Rate


def rate_limit_headers(meters: Meters) -> Mapping[str, str]:
    """Those of the current caller; none where nothing is limited by the minute."""
    return {
        f"x-ratelimit-{name}-{what}": value
        for what, rate in meters.rates(caller().party).items()
        for name, value in _words(rate).items()
    }


def _words(rate: Rate) -> Mapping[str, str]:
    return {"limit": str(rate.limit), "remaining": str(rate.remaining), "reset": f"{rate.reset:.3f}s"}
