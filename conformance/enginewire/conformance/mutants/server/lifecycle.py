"""Programs that start or end badly. These are judged as processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities.multiplexed import Frame, Requests
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.reference.signals import AddressError, AddressInUse

LONGER_SECONDS = 30
"""Than any bound of a check that looks for what goes on too long."""


@mutant("hangs_before_ready", kills="LIF-01")
class HangsBeforeReady(Reference):
    """Twice as slow to start as others, so that a busy machine sees what it holds."""

    async def start(self) -> None:
        await asyncio.sleep(self.settings.start_seconds)
        await super().start()

    def check_state(self) -> None:
        if self.state != pb.ENGINE_STATE_STARTING:
            super().check_state()

    def step(self, now: float) -> None:
        if self.state != pb.ENGINE_STATE_STARTING or self._signalled:
            super().step(now)


@mutant("not_started_is_dead", kills="LIF-01")
class NotStartedIsDead(Reference):
    def check_state(self) -> None:
        if self.state == pb.ENGINE_STATE_STARTING:
            raise Refusal(pb.ERROR_REASON_ENGINE_DEAD, "there is no engine")
        super().check_state()


@mutant("streams_come_too_early", kills="LIF-01")
class StreamsComeTooEarly(Reference):
    """All of one is refused, not the requests on it."""

    async def generate_multiplexed(self, requests: Requests, call: Call) -> AsyncIterator[Frame]:
        if self.state == pb.ENGINE_STATE_STARTING:
            self.check_state()
        async for frame in super().generate_multiplexed(requests, call):
            yield frame


@mutant("sigterm_kills_streams", kills="LIF-02")
class SigtermKillsStreams(Reference):
    async def finish_requests(self) -> None:
        """They are lost."""


@mutant("exit_nonzero", kills="LIF-02")
class ExitNonzero(Reference):
    async def until_signalled(self) -> int:
        await super().until_signalled()
        return 143


@mutant("cleaned_up_it_exits_nonzero", kills="LIF-02/cleaned-up")
class CleanedUpItExitsNonzero(Reference):
    async def until_signalled(self) -> int:
        code = await super().until_signalled()
        return 70 if self._was_cleaned_up else code

    async def finish_requests(self) -> None:
        self._was_cleaned_up = self.state == pb.ENGINE_STATE_STOPPED
        await super().finish_requests()

    _was_cleaned_up = False


@mutant("ignores_second_signal", kills="LIF-03")
class IgnoresSecondSignal(Reference):
    settings = replace(Settings(), step_seconds=0.02)

    def hurry(self) -> None:
        """Nothing can hurry it."""


@mutant("sigterm_during_start_ignored", kills="LIF-04")
class SigtermDuringStartIgnored(Reference):
    def signalled(self) -> None:
        if self.state != pb.ENGINE_STATE_STARTING:
            super().signalled()


@mutant("bad_config_runs", kills="LIF-05")
class BadConfigRuns(Reference):
    """Listens somewhere else."""

    _elsewhere = ""

    def check_address(self, target: str) -> None:
        try:
            super().check_address(target)
        except AddressInUse:
            raise
        except AddressError as mistake:
            print(mistake, file=sys.stderr)
            self._elsewhere = "127.0.0.1:0"

    async def serve(self, target: str) -> grpc.aio.Server:
        return await super().serve(self._elsewhere or target)


@mutant("bad_config_is_ok", kills="LIF-05")
class BadConfigIsOk(Reference):
    def cannot_listen(self, mistake: AddressError) -> int:
        code = super().cannot_listen(mistake)
        return code if isinstance(mistake, AddressInUse) else 0


@mutant("bad_config_in_silence", kills="LIF-05")
class BadConfigInSilence(Reference):
    def cannot_listen(self, mistake: AddressError) -> int:
        print("Something went wrong", file=sys.stderr)
        return 1


@mutant("silent_port_clash", kills="LIF-06")
class SilentPortClash(Reference):
    def cannot_listen(self, mistake: AddressError) -> int:
        code = super().cannot_listen(mistake)
        return 0 if isinstance(mistake, AddressInUse) else code


@mutant("takes_the_address_over", kills="LIF-06")
class TakesTheAddressOver(Reference):
    def check_unused(self, family: int, address: str | tuple[str, int], target: str) -> None:
        """Whoever comes last, listens."""


@mutant("orphan_worker", kills="LIF-07")
class OrphanWorker(Reference):
    async def start(self) -> None:
        await super().start()
        self._worker = await asyncio.create_subprocess_exec("sleep", str(LONGER_SECONDS))


@mutant("orphan_daemon", kills="LIF-07")
class OrphanDaemon(Reference):
    async def start(self) -> None:
        await super().start()
        self._worker = await asyncio.create_subprocess_exec(
            "sleep", str(LONGER_SECONDS), start_new_session=True
        )


@mutant("stale_socket", kills="LIF-08")
class StaleSocket(Reference):
    def check_address(self, target: str) -> None:
        super().check_address(target)
        if os.path.exists(target.removeprefix("unix:")):
            raise AddressError(f"cannot listen at {target}: the file exists")


@mutant("who_watches_holds_the_shutdown", kills="LIF-02")
class WhoWatchesHoldsTheShutdown(Reference):
    """As long as a health Watch is open."""

    def __init__(self) -> None:
        super().__init__()
        self._watchers = 0

    async def watch_health(self, service: str) -> AsyncIterator[int]:
        self._watchers += 1
        try:
            async for status in super().watch_health(service):
                yield status
        finally:
            self._watchers -= 1

    def is_busy(self) -> bool:
        return super().is_busy() or bool(self._watchers)
