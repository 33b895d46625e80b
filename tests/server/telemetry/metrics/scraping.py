"""What a page of metrics says, read as Prometheus reads it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from urllib.request import urlopen

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.patience import PATIENCE_SECONDS
from tests.repository import ROOT

DOCUMENTED = ROOT / "docs/metrics.md"


class Scrape:
    """Samples by name and labels, `engine` and `model_name` left out."""

    def __init__(self, page: str | Iterable[Metric]) -> None:
        """A page as text, or what one is written from: to read it back takes most of the time."""
        self.families: list[Metric] = list(
            text_string_to_metric_families(page) if isinstance(page, str) else page
        )
        self.samples = {
            (sample.name, frozenset(shown(sample.labels.items()))): sample.value
            for family in self.families
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The value of one sample."""
        return self.samples[name, frozenset(labels.items())]

    def of_kind(self, *kinds: str) -> dict[object, float]:
        """The samples of these kinds, without those of the process."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            if family.type in kinds and not family.name.startswith("process_")
            for sample in family.samples
        }

    def names(self) -> dict[str, str]:
        """Each name as the documentation writes it, and its kind; without those of the process."""
        return {
            family.name + "_total" * (family.type == "counter"): family.type
            for family in self.families
            if not family.name.startswith("process_")
        }


def shown(labels: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return [item for item in labels if item[0] not in ("engine", "model_name")]


async def scrape(url: str) -> Scrape:
    """Over HTTP."""

    def read() -> str:
        with urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            content: bytes = answer.read()
        return content.decode()

    return Scrape(await asyncio.to_thread(read))


def documented(heading: str) -> dict[str, str]:
    """Name to kind of the table below a heading of docs/metrics.md."""
    section = DOCUMENTED.read_text().split(f"## {heading}")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w:]+)[^`]*` \| (\w+) \|", section, re.MULTILINE)
    return dict(rows)
