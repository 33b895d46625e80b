"""From the timelines of a run to its figures.

Sans-IO, pure arithmetic. Knows nothing about how they are shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enginewire.backend.bench.timeline import Timeline

MS_PER_SECOND = 1000.0
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of one latency, in milliseconds and ascending. All figures are NaN when there is no sample."""

    samples: Sequence[float]

    @property
    def mean(self) -> float:
        """The average."""
        return math.fsum(self.samples) / len(self.samples) if self.samples else math.nan

    def percentile(self, percent: float) -> float:
        """The value below which that share lies, linear between samples."""
        if not self.samples:
            return math.nan
        place = percent / 100 * (len(self.samples) - 1)
        below = math.floor(place)
        above = min(below + 1, len(self.samples) - 1)
        return self.samples[below] + (self.samples[above] - self.samples[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run. `duration` in seconds, `good` None when nothing was promised."""

    duration: float
    peak_concurrency: int
    completed: int
    good: int | None
    num_input_tokens: int
    num_output_tokens: int
    failures: Mapping[str, int]
    latencies: Mapping[str, Distribution]

    @property
    def failed(self) -> int:
        """Requests without a whole answer."""
        return sum(self.failures.values())

    def per_second(self, count: int) -> float:
        """A count over the duration."""
        return count / self.duration if self.duration > 0 else math.nan


def summarize(
    timelines: Sequence[Timeline],
    duration: float,
    peak_concurrency: int = 0,
    limits: Mapping[str, float] | None = None,
) -> Summary:
    """The figures; `limits` in milliseconds by metric say what a good request keeps."""
    whole = [timeline for timeline in timelines if not timeline.failure]
    return Summary(
        duration=duration,
        peak_concurrency=peak_concurrency,
        completed=len(whole),
        good=sum(is_good(timeline, limits) for timeline in whole) if limits else None,
        num_input_tokens=sum(timeline.num_input_tokens for timeline in whole),
        num_output_tokens=sum(timeline.num_output_tokens for timeline in whole),
        failures=Counter(timeline.failure for timeline in timelines if timeline.failure),
        latencies={
            "ttft": distribution([timeline.ttft for timeline in whole]),
            "tpot": distribution([each for timeline in whole if (each := timeline.tpot) is not None]),
            "itl": distribution([itl for timeline in whole for itl in timeline.itls]),
            "e2el": distribution([timeline.e2el for timeline in whole]),
        },
    )


def distribution(seconds: Sequence[float]) -> Distribution:
    """Of samples in any order."""
    return Distribution(sorted(sample * MS_PER_SECOND for sample in seconds))


def is_good(timeline: Timeline, limits: Mapping[str, float]) -> bool:
    """The request kept every limit; a single token has no TPOT to exceed."""
    latencies = {"ttft": timeline.ttft, "tpot": timeline.tpot, "e2el": timeline.e2el}
    return all((latencies[metric] or 0.0) * MS_PER_SECOND <= limit for metric, limit in limits.items())
