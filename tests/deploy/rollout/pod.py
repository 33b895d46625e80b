"""A pod as a kubelet runs it: volumes, the order of its containers, whether it is ready, and its end.

Knows nothing about Services and callers.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.rehearsal.cable import Cable
from tests.deploy.rollout.container import Container


@dataclass(frozen=True)
class Ending:
    """How a pod ended: after how many seconds, by SIGKILL or not, and with which codes by container."""

    seconds: float
    was_killed: bool
    exit_codes: dict[str, int | None]


class Pod:
    """From `pod` below. `containers` are in the order in which they start."""

    def __init__(self, spec: dict[str, Any], cable: Cable, volumes: Path, group: asyncio.TaskGroup) -> None:
        self.host = cable.far
        self._group = group
        self._sidecars = [Container(each, cable, volumes) for each in spec["initContainers"]]
        self._own = [Container(each, cable, volumes) for each in spec["containers"]]
        self._hooks = {each["name"]: each.get("lifecycle", {}) for each in spec["containers"]}
        self._grace: float = spec["terminationGracePeriodSeconds"]
        self._lives: dict[str, asyncio.Task[None]] = {}

    @property
    def containers(self) -> list[Container]:
        """All of them."""
        return [*self._sidecars, *self._own]

    @property
    def is_ready(self) -> bool:
        """Callers may be sent to it."""
        return all(each.is_ready for each in self.containers)

    async def start(self) -> None:
        """A sidecar that has started lets the next one start, then the others do."""
        for each in self.containers:
            self._lives[each.name] = self._group.create_task(each.run())
            if each in self._sidecars:
                await each.has_started.wait()

    async def end(self) -> Ending:
        """Hooks, SIGTERM to the containers, and when they have ended to the sidecars, the last one first."""
        began, was_killed = time.monotonic(), False
        try:
            async with asyncio.timeout(self._grace):
                await asyncio.gather(*(self._end(each) for each in self._own))
                for each in reversed(self._sidecars):
                    await self._end(each)
        except TimeoutError:
            was_killed = True
            for each in self.containers:
                each.stop()
                each.kill()
            await asyncio.wait(self._lives.values())
        codes = {each.name: each.exit_code for each in self.containers}
        return Ending(time.monotonic() - began, was_killed, codes)

    async def _end(self, container: Container) -> None:
        hook = self._hooks.get(container.name, {}).get("preStop")
        if hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        container.stop()
        await asyncio.wait([self._lives[container.name]])

    def remove(self) -> None:
        """Whatever is left of it."""
        for life in self._lives.values():
            life.cancel()


@asynccontextmanager
async def pod(spec: dict[str, Any], cable: Cable, folder: Path) -> AsyncIterator[Pod]:
    """One that is started; it need not be ready. Nothing is left of it behind the context."""
    with ExitStack() as mounted:
        for volume in spec["volumes"]:
            mounted.enter_context(empty_dir(volume["emptyDir"], folder / volume["name"]))
        async with asyncio.TaskGroup() as group:
            running = Pod(spec, cable, folder, group)
            try:
                await running.start()
                yield running
            finally:
                running.remove()


@contextmanager
def empty_dir(spec: dict[str, Any], at: Path) -> Iterator[None]:
    """A volume of the size that it may have, and with the mode of its kind. All of them are in memory."""
    at.mkdir(parents=True)
    mode = "1777" if spec.get("medium") == "Memory" else "0777"
    options = f"size={spec['sizeLimit'].removesuffix('i')},mode={mode}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", at], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)
