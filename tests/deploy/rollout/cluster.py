"""The pods of a Deployment and the Service in front of them: what its controllers do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from tests.chaos.rehearsal.cable import Cable
from tests.deploy.programs import DEPLOY, documents
from tests.deploy.rollout.callers import Service
from tests.deploy.rollout.pod import Ending, Pod, pod

DEPLOYMENT: Final = documents(DEPLOY / "kubernetes" / "sidecar" / "deployment.yaml")[0]["spec"]
POD: Final = DEPLOYMENT["template"]["spec"]
# In the place of the model: answers that take seconds, so that some are on their way at any moment.
POD["initContainers"][0]["args"][:1] = ["--engine=mocker", "--mocker-itl-ms=50", "--max-model-len=65536"]
PORT: Final = 8000
LOOK_SECONDS: Final = 0.1
# So long the proxy of a node still sends connections to a pod that goes: a second less than its preStop.
HEARD_SECONDS: Final = 4.0


class Cluster:
    """From `cluster` below. `pods` are those that stay, the oldest first."""

    def __init__(self, service: Service, folder: Path, stack: AsyncExitStack) -> None:
        self.service = service
        self.pods: list[Pod] = []
        self._folder = folder
        self._stack = stack
        self._num_pods = 0

    async def add(self) -> None:
        """One more pod, once it is ready."""
        cable = self._stack.enter_context(Cable(self._num_pods))
        volumes = self._folder / f"pod{self._num_pods}"
        self._num_pods += 1
        new = await self._stack.enter_async_context(pod(POD, cable, volumes))
        while not new.is_ready:  # noqa: ASYNC110  # other processes
            await asyncio.sleep(LOOK_SECONDS)
        self.pods.append(new)

    async def delete(self, old: Pod) -> Ending:
        """A pod goes. Controllers know at once, proxies later."""
        self.pods.remove(old)
        return await old.end()

    async def replace_all(self) -> list[Ending]:
        """As with maxSurge 1 and maxUnavailable 0: a new pod is ready before an old one goes."""
        endings = []
        for old in [*self.pods]:
            await self.add()
            endings.append(asyncio.create_task(self.delete(old)))
        return [await each for each in endings]

    async def keep_endpoints(self) -> None:
        """Until it is cancelled: send new connections to ready pods, as proxies have last heard of them."""
        heard: list[tuple[str, ...]] = []
        while True:
            heard.append(tuple(f"{each.host}:{PORT}" for each in self.pods if each.is_ready))
            del heard[: -round(HEARD_SECONDS / LOOK_SECONDS)]
            self.service.endpoints = list(heard[0])
            await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """One with all its replicas. Nothing is left of it behind the context."""
    assert DEPLOYMENT["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(Service(random.Random(1)))
        running = Cluster(service, folder, stack)
        keeping = asyncio.create_task(running.keep_endpoints())
        stack.callback(keeping.cancel)
        async with asyncio.TaskGroup() as group:
            for _ in range(DEPLOYMENT["replicas"]):
                group.create_task(running.add())
        while len(service.endpoints) < DEPLOYMENT["replicas"]:  # noqa: ASYNC110  # as proxies hear of it
            await asyncio.sleep(LOOK_SECONDS)
        yield running
