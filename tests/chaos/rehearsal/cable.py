"""A cable between this process's network and one of its own: it can be pulled, go silent, be bad and narrow.

Use `python -m tests.chaos.rehearsal`, which gives the whole run a private network first.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

# An address that no card has: what is sent there arrives nowhere, and nobody is told.
NOWHERE: Final = "02:00:00:00:00:01"
BURST_SECONDS: Final = (0.2, 0.1)


def ip(*words: str) -> None:
    """`ip WORDS`."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Cable:
    """A pair of network cards; the far one is in a namespace of its own. A context manager."""

    def __init__(self, number: int) -> None:
        self.namespace, self._card = f"far{number}", f"near{number}"
        self.near, self.far = f"10.203.{number}.1", f"10.203.{number}.2"

    def __enter__(self) -> Self:
        ip("netns", "add", self.namespace)
        ip("link", "add", self._card, "type", "veth", "peer", "name", "far", "netns", self.namespace)
        ip("addr", "add", f"{self.near}/30", "dev", self._card)
        ip("link", "set", self._card, "up")
        self._far("addr", "add", f"{self.far}/30", "dev", "far")
        self._far("link", "set", "far", "up")
        self._far("link", "set", "lo", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With the namespace it would go at some time later.
        ip("link", "del", self._card)
        ip("netns", "del", self.namespace)

    def at_the_far_end(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` there."""
        return ["ip", "netns", "exec", self.namespace, *argv]

    def pull(self) -> None:
        """Out of the near card, which knows it."""
        ip("link", "set", self._card, "down")

    def pull_far(self) -> None:
        """Out of the far card."""
        self._far("link", "set", "far", "down")

    def silence(self) -> None:
        """Nothing arrives in either direction, and nobody is told."""
        self.silence_near()
        self.silence_far()

    def silence_near(self) -> None:
        """Nothing that is sent from here arrives."""
        ip("neigh", "replace", self.far, "lladdr", NOWHERE, "dev", self._card, "nud", "permanent")

    def silence_far(self) -> None:
        """Nothing that is sent from there arrives."""
        self._far("neigh", "replace", self.near, "lladdr", NOWHERE, "dev", "far", "nud", "permanent")

    def narrow(self, kilobits: int) -> None:
        """No more than that in a second in either direction: what is sent waits, two seconds at most."""
        words = ("root", "tbf", "rate", f"{kilobits}kbit", "burst", "4k", "latency", "2s")
        for where in ([], ["-n", self.namespace]):
            card = "far" if where else self._card
            subprocess.run(["tc", *where, "qdisc", "replace", "dev", card, *words], check=True)

    async def be_bad(self) -> None:
        """Until it is cancelled: lose everything for a tenth of a second, three times a second."""
        good, bad = BURST_SECONDS
        while True:
            await asyncio.sleep(good)
            self.silence()
            await asyncio.sleep(bad)
            self.heal()

    def heal(self) -> None:
        """As it was when it was new."""
        ip("link", "set", self._card, "up")
        self._far("link", "set", "far", "up")
        for where, card, other in (([], self._card, self.far), (["-n", self.namespace], "far", self.near)):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(*where, "neigh", "del", other, "dev", card)
            subprocess.run(
                ["tc", *where, "qdisc", "del", "dev", card, "root"], capture_output=True, check=False
            )

    def _far(self, *words: str) -> None:
        ip("-n", self.namespace, *words)
