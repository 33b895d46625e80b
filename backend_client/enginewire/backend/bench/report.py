"""A summary as a table for people and as JSON for programs.

Sans-IO. The JSON has the names that vLLM's benchmark uses. Knows nothing about how figures come about.
"""

from __future__ import annotations

import json
import math
from typing import Final

from enginewire.backend.bench.summary import PERCENTILES, Summary

NAMES: Final = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}
LABEL_WIDTH: Final = 32
FIGURE_WIDTH: Final = 10


def table(summary: Summary) -> str:
    """Several lines of text."""
    lines = [_row(label, figure) for label, figure in _figures(summary)]
    heads = ["mean", *(f"p{percent}" for percent in PERCENTILES), "max"]
    lines += ["", _row("milliseconds", *heads)]
    for metric, name in NAMES.items():
        latency = summary.latencies[metric]
        largest = latency.samples[-1] if latency.samples else math.nan
        figures = [latency.mean, *map(latency.percentile, PERCENTILES), largest]
        lines.append(_row(f"{name} ({metric.upper()})", *(f"{figure:.2f}" for figure in figures)))
    if summary.failures:
        lines += ["", *(f"failed {count} x {why}" for why, count in _worst_first(summary))]
    return "\n".join(lines)


def as_json(summary: Summary) -> str:
    """One line. What cannot be computed is null."""
    figures: dict[str, float | int | dict[str, int] | None] = {
        "completed": summary.completed,
        "failed": summary.failed,
        "duration": summary.duration,
        "total_input_tokens": summary.num_input_tokens,
        "total_output_tokens": summary.num_output_tokens,
        "request_throughput": summary.per_second(summary.completed),
        "request_goodput": None if summary.good is None else summary.per_second(summary.good),
        "output_throughput": summary.per_second(summary.num_output_tokens),
        "total_token_throughput": summary.per_second(summary.num_input_tokens + summary.num_output_tokens),
        "max_concurrent_requests": summary.peak_concurrency,
    }
    for metric in NAMES:
        latency = summary.latencies[metric]
        figures[f"mean_{metric}_ms"] = latency.mean
        for percent in PERCENTILES:
            figures[f"p{percent}_{metric}_ms"] = latency.percentile(percent)
    figures["errors"] = dict(_worst_first(summary))
    return json.dumps({name: _finite(figure) for name, figure in figures.items()}, allow_nan=False)


def _figures(summary: Summary) -> list[tuple[str, str]]:
    figures = [
        ("requests completed", f"{summary.completed}"),
        ("requests failed", f"{summary.failed}"),
        ("most at the same time", f"{summary.peak_concurrency}"),
        ("duration, s", f"{summary.duration:.2f}"),
        ("input tokens", f"{summary.num_input_tokens}"),
        ("output tokens", f"{summary.num_output_tokens}"),
        ("requests/s", f"{summary.per_second(summary.completed):.2f}"),
        ("output tokens/s", f"{summary.per_second(summary.num_output_tokens):.2f}"),
    ]
    if summary.good is not None:
        figures.append(("goodput, requests/s", f"{summary.per_second(summary.good):.2f}"))
    return figures


def _row(label: str, *figures: str) -> str:
    return label.ljust(LABEL_WIDTH) + "".join(figure.rjust(FIGURE_WIDTH) for figure in figures)


def _worst_first(summary: Summary) -> list[tuple[str, int]]:
    return sorted(summary.failures.items(), key=lambda failure: (-failure[1], failure[0]))


def _finite(figure: float | int | dict[str, int] | None) -> float | int | dict[str, int] | None:
    return None if isinstance(figure, float) and not math.isfinite(figure) else figure
