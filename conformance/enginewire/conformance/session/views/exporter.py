"""What a target exports: Prometheus text over HTTP, read into samples. Judges nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.violation import NotApplicable, Violation

MOST_BYTES: Final = 16 * 2**20
TYPE: Final = re.compile(r"# TYPE (?P<name>\S+) (?P<kind>\w+)")
SAMPLE: Final = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?P<labels>\{.*\})? (?P<value>\S+)")
PART: Final = re.compile(r"_(total|sum|count|bucket|created)$")
GROWING: Final = ("counter", "histogram", "summary")

RUNNING: Final = r"(?:.*[:_])?(?:(?:requests?|reqs)_running|running_(?:requests?|reqs))"
WAITING: Final = (
    r"(?:.*[:_])?(?:(?:requests?|reqs)_(?:waiting|queued)|(?:waiting|queued?)_(?:requests?|reqs))"
)
GENERATED: Final = (
    r"(?:.*[:_])?(?:(?:generation|generated|completion|output)_tokens|tokens_generated)(?:_total)?"
)
"""How engines call these; the contract names no metric."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """One scrape: samples by name with labels, and the kind of each name."""

    samples: dict[str, float]
    kinds: dict[str, str]

    def kind(self, sample: str) -> str:
        """Counter, gauge, histogram, summary or untyped."""
        name = sample.partition("{")[0]
        return self.kinds.get(name) or self.kinds.get(PART.sub("", name)) or "untyped"

    def growing(self) -> dict[str, float]:
        """What may only grow."""
        return {
            name: value
            for name, value in self.samples.items()
            if self.kind(name) in GROWING and not name.partition("{")[0].endswith("_created")
        }

    def gauges(self) -> dict[str, float]:
        """What goes up and down: neither of the language's own library, nor what tells by its labels.

        Nor what an allocator holds, which may keep what it once needed.
        """
        own = ("process_", "python_", "go_", "jvm_")
        return {
            name: value
            for name, value in self.samples.items()
            if self.kind(name) == "gauge"
            and not name.startswith(own)
            and not name.partition("{")[0].endswith("_info")
            and "memory" not in name.partition("{")[0]
        }

    def sum_of(self, pattern: str) -> float:
        """The sum over all labels of what is called like this; NotApplicable without any."""
        found = [
            value for name, value in self.samples.items() if re.fullmatch(pattern, name.partition("{")[0])
        ]
        if not found:
            raise NotApplicable(f"no metric is called like {pattern}")
        return sum(found)


async def scrape(ctx: Context) -> Metrics:
    """What is exported now; NotApplicable without an address, a Violation when nothing is there."""
    url = ctx.session.options.metrics_url
    if not url.startswith(("http://", "https://")):
        raise NotApplicable("needs --metrics-url")
    try:
        return parse(await asyncio.to_thread(_read, url, ctx.client.timeout))
    except (URLError, OSError) as error:
        raise Violation("metrics are advertised and not exported", expected=url, seen=error) from None


def parse(text: str) -> Metrics:
    """From the text format; lines that are none of it are left out."""
    kinds = {found["name"]: found["kind"] for found in map(TYPE.match, text.splitlines()) if found}
    return Metrics(dict(_samples(text)), kinds)


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        if found := SAMPLE.match(line):
            try:
                yield found["name"] + (found["labels"] or ""), float(found["value"])
            except ValueError:
                continue


def _read(url: str, timeout: float) -> str:
    with urlopen(url, timeout=timeout) as answer:  # noqa: S310  # the address is the user's, the scheme checked
        content: bytes = answer.read(MOST_BYTES)
    return content.decode(errors="replace")
