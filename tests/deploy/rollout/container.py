"""One container of a pod: its mounts, its probes, its lives and its end, as the manifest has them.

Knows nothing about other containers. There are no images, no users and no limits of memory: the program is
that of this virtual environment, and its file system is the machine's, read-only but for the volumes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.chaos.rehearsal.cable import Cable
from tests.deploy.programs import OF_CONTAINERS
from tests.repository import ROOT

BIN: Final = Path(sys.executable).parent
# The program itself may be somewhere in /tmp, which is a volume.
MOUNT_AND_RUN: Final = """
root=$1 aside=/run/root; shift; mkdir -p $aside; mount --rbind "$root" $aside
while [ "$1" != -- ]; do mkdir -p "$2"; mount --bind "$1" "$2"; shift 2; done; shift
mkdir -p "$root"; mount --rbind $aside "$root"; mount -o remount,bind,ro / && exec "$@"
"""


# The kubelet doubles it each time.
BACKOFF_SECONDS: Final = 10.0


class Probe:
    """Asks a port for its health, again and again."""

    def __init__(self, spec: dict[str, Any], host: str) -> None:
        self._target = f"{host}:{spec['grpc']['port']}"
        self._request = health_pb2.HealthCheckRequest(service=spec["grpc"].get("service", ""))
        self._timeout: float = spec["timeoutSeconds"]
        self._period: float = spec["periodSeconds"]
        self._threshold: int = spec["failureThreshold"]
        self.passes = False
        """What was last found, once that was found often enough."""

    async def run(self, *, until: bool | None = None) -> None:
        """Until it passes (True), has failed (False), or is cancelled (None)."""
        num_failures = 0
        while True:
            num_failures = 0 if await self._is_well() else num_failures + 1
            self.passes = num_failures == 0 or (self.passes and num_failures < self._threshold)
            if (until is True and self.passes) or (until is False and num_failures == self._threshold):
                return
            await asyncio.sleep(self._period)

    async def _is_well(self) -> bool:
        async with grpc.aio.insecure_channel(self._target) as channel:
            with suppress(grpc.aio.AioRpcError):
                stub = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(self._request, timeout=self._timeout)
                return answer.status == health_pb2.HealthCheckResponse.SERVING
        return False


class Container:
    """A program in the network of its pod. It is started again whenever it ends, until `stop`."""

    def __init__(self, spec: dict[str, Any], cable: Cable, volumes: Path) -> None:
        self.name: str = spec["name"]
        self._log = volumes / f"{self.name}.log"
        paths = ((str(volumes / mount["name"]), mount["mountPath"]) for mount in spec["volumeMounts"])
        self._variables = {each["name"]: each["value"] for each in spec.get("env", ())} | {"PATH": os.defpath}
        program, *words = OF_CONTAINERS[self.name].split()
        mounted = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            MOUNT_AND_RUN,
            "sh",
            str(ROOT),
            *itertools.chain(*paths),
            "--",
        ]
        self._argv = cable.at_the_far_end([*mounted, str(BIN / program), *words, *spec["args"]])
        self._startup, self._liveness, self._readiness = (
            Probe(spec[name], cable.far) if name in spec else None
            for name in ("startupProbe", "livenessProbe", "readinessProbe")
        )
        self.has_started = asyncio.Event()
        """Its first life has passed the startup probe."""
        self.num_restarts = 0
        self.exit_code: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._is_leaving = False

    @property
    def is_ready(self) -> bool:
        """A container without a readiness probe is ready once it has started."""
        return self._readiness.passes if self._readiness else self.has_started.is_set()

    async def run(self) -> None:
        """All its lives."""
        while True:
            await self._live()
            if not self._is_leaving:
                # The first time at once, and then not: CrashLoopBackOff.
                await asyncio.sleep(BACKOFF_SECONDS if self.num_restarts else 0)
            if self._is_leaving:
                return
            self.num_restarts += 1

    async def _live(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, env=self._variables, stdout=log, stderr=log
            )
        probing = asyncio.create_task(self._probe())
        try:
            await self._process.wait()
        finally:
            probing.cancel()
            if self._readiness:
                self._readiness.passes = False
            self.kill()
            self.exit_code = await self._process.wait()

    async def _probe(self) -> None:
        assert self._startup is not None
        assert self._liveness is not None
        await self._startup.run(until=True)
        self.has_started.set()
        async with asyncio.TaskGroup() as group:
            if self._readiness:
                group.create_task(self._readiness.run())
            await self._liveness.run(until=False)
            self.kill()

    def stop(self) -> None:
        """Ask it to end, as the kubelet does."""
        self._is_leaving = True
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """As the kernel does when memory is short, and the kubelet when the grace is over."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
