"""The distributions of a summary as SVG: one panel per latency, its cumulative share in percent.

Sans-IO. Knows nothing about how figures come about.
"""

from __future__ import annotations

from typing import Final

from enginewire.backend.bench.report import NAMES
from enginewire.backend.bench.summary import PERCENTILES, Distribution, Summary

PANEL_WIDTH: Final = 300
PANEL_HEIGHT: Final = 200
MARGIN: Final = 40
NUM_POINTS: Final = 200
STYLE: Final = (
    "text{font:12px sans-serif;fill:#333}.axis{stroke:#999}.grid{stroke:#ddd}"
    ".curve{fill:none;stroke:#06c;stroke-width:1.5}"
)


def svg(summary: Summary) -> str:
    """A picture."""
    panels = [panel(name, summary.latencies[metric]) for metric, name in NAMES.items()]
    width, height = PANEL_WIDTH + 2 * MARGIN, PANEL_HEIGHT + 2 * MARGIN
    placed = "".join(
        f'<g transform="translate({MARGIN + number % 2 * width},{MARGIN + number // 2 * height})">{each}</g>'
        for number, each in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width}" height="{2 * height}">'
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{placed}</svg>\n'
    )


def panel(name: str, latency: Distribution) -> str:
    """One distribution, from 0 to its largest sample."""
    largest = latency.samples[-1] if latency.samples else 0.0
    scale = PANEL_WIDTH / largest if largest > 0 else 0.0
    grid = "".join(grid_line(percent) for percent in (0, *PERCENTILES))
    return (
        f'<text y="-8">{name}, ms</text>{grid}<line class="axis" y2="{PANEL_HEIGHT}"/>'
        f'<text y="{PANEL_HEIGHT + 16}">0</text>'
        f'<text x="{PANEL_WIDTH}" y="{PANEL_HEIGHT + 16}" text-anchor="end">{largest:.2f}</text>'
        f'<polyline class="curve" points="{curve(latency, scale)}"/>'
    )


def grid_line(percent: int) -> str:
    """A percentile across the panel; 0 is the axis."""
    y = PANEL_HEIGHT * (1 - percent / 100)
    line = f'<line class="{"grid" if percent else "axis"}" x2="{PANEL_WIDTH}" y1="{y}" y2="{y}"/>'
    return line + (f'<text x="-4" y="{y + 4}" text-anchor="end">p{percent}</text>' if percent else "")


def curve(latency: Distribution, scale: float) -> str:
    """Points of the cumulative share."""
    if not latency.samples:
        return ""
    percents = [100 * step / NUM_POINTS for step in range(NUM_POINTS + 1)]
    return " ".join(
        f"{latency.percentile(percent) * scale:.1f},{PANEL_HEIGHT * (1 - percent / 100):.1f}"
        for percent in percents
    )
