"""The gRPC server around one engine: listen, start, serve, drain, stop.

`EngineServer.run` reads top-down as the life of the process. Knows nothing about the RPCs' content
and nothing about any particular engine.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import math
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Final

import grpc

from enginewire import v1 as pb
from enginewire.access.guard import guards
from enginewire.access.listener_options import access_of, audit_log_of
from enginewire.grpc_server import MIN_KEEPALIVE_MS, new_server
from enginewire.listening.binding import add_reflection, listen
from enginewire.listening.health_port import health_port
from enginewire.listening.sockets import AddressError, check_port_is_free
from enginewire.program import systemd
from enginewire.server.admission.delivery import BufferLimits
from enginewire.server.admission.new_table import new_table
from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.interface import AdapterEngine, EmbeddingEngine, StepEngine
from enginewire.server.lifecycle import DrainPlan, Lifecycle
from enginewire.server.process.signals import ending_signals, ends_at_once
from enginewire.server.services.admin import AdminServicer
from enginewire.server.services.discovery import DiscoveryServicer, Identity
from enginewire.server.services.embedding import EmbeddingServicer
from enginewire.server.services.engine import EngineServicer
from enginewire.server.services.handlers import handlers, refuse_caller
from enginewire.server.services.health import SERVICE as HEALTH_SERVICE, EngineHealth
from enginewire.server.services.kv import KvServicer
from enginewire.server.telemetry.audited import REQUEST_METHODS
from enginewire.server.telemetry.telemetry import Telemetry
from enginewire.server.validation.bounds import effective_limits
from enginewire.v1 import (
    admin_service_pb2,
    discovery_service_pb2,
    embedding_service_pb2,
    engine_service_pb2,
    kv_service_pb2,
)

if TYPE_CHECKING:
    from enginewire.server.telemetry.metrics.exporter import MetricsExporter

log = logging.getLogger(__name__)

ENGINE_SERVICE = engine_service_pb2.DESCRIPTOR.services_by_name["EngineService"]
DISCOVERY_SERVICE = discovery_service_pb2.DESCRIPTOR.services_by_name["DiscoveryService"]
KV_SERVICE = kv_service_pb2.DESCRIPTOR.services_by_name["KvService"]
ADMIN_SERVICE = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"]
EMBEDDING_SERVICE = embedding_service_pb2.DESCRIPTOR.services_by_name["EmbeddingService"]
SERVICES = (ENGINE_SERVICE, DISCOVERY_SERVICE, KV_SERVICE, ADMIN_SERVICE, EMBEDDING_SERVICE)

EXIT_OK: Final = 0
EXIT_START_FAILED: Final = 1
EXIT_ENGINE_DEAD: Final = 70
EXIT_ADDRESS: Final = 98
# Last words of streams that are being ended; everything else has ended before.
STOP_GRACE_SECONDS: Final = 0.5
START_GRACE_SECONDS: Final = 5.0
LIFE_CHECK_SECONDS: Final = 0.1
"""Until the death of an engine shows in health. Before that, callers come back with what it has lost."""
SLOW_CHECK_SECONDS: Final = 1.0


class EngineServer:
    """One engine behind one listening address."""

    def __init__(self, engine: StepEngine, options: ServerOptions) -> None:
        self.options = options
        self.identity = Identity(
            nameless=options.engine if ":" in options.engine else f"enginewire-{options.engine}",
            instance_id=options.instance_id or secrets.token_hex(8),
            worker_id=secrets.randbits(63) if options.worker_id is None else options.worker_id,
            lifetime_id=secrets.token_hex(8),
        )
        plan = DrainPlan(options.shutdown_timeout, options.admission_grace)
        self.access, self.audit = access_of(options), audit_log_of(options)
        self._telemetry = Telemetry(options, self.identity.instance_id, self.audit)
        requests = new_table(options, self.access, self._telemetry.observer)
        self.lifecycle = Lifecycle(engine, requests, plan, self._telemetry.metrics_context)
        self._telemetry.show(self.lifecycle, self.access)
        self.target = ""
        self._server: grpc.aio.Server | None = None
        self._address = ExitStack()
        self._beside = AsyncExitStack()
        self._background: list[asyncio.Task[None]] = []
        self._died = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal or the engine's death; returns the exit code."""
        # From here on: a signal that came between the socket and its handler would leave the socket behind.
        with ending_signals() as stop:
            try:
                await self.listen()
            except AddressError as error:
                log.error("cannot listen: %s", error)
                await self._telemetry.close()
                return EXIT_ADDRESS
            try:
                exit_code = await self._live(stop)
            finally:
                with ends_at_once():
                    await self.stop()
        if exit_code == EXIT_OK and not self.lifecycle.is_released:
            return EXIT_ENGINE_DEAD
        return exit_code

    async def _live(self, stop: asyncio.Queue[signal.Signals]) -> int:
        """Start, serve and drain; returns the exit code if the clean-up goes well."""
        try:
            if not await self._start_unless_stopped(stop):
                return EXIT_OK
            await self._serve_until(stop)
            return EXIT_ENGINE_DEAD if self._died.is_set() else await self._drain_until(stop)
        except EngineStartFailed as error:
            log.error("the engine failed to start: %s", error)
            log.debug("where it failed", exc_info=error)
            return EXIT_START_FAILED

    async def listen(self) -> None:
        """Open the port or socket. Raises AddressError. RPCs answer NOT_STARTED until the engine is up."""
        await self._telemetry.open(self.access)
        options = self.options
        access = self.access if options.port is not None else self.access.on_socket
        self._server = new_server(
            options.max_message_bytes,
            options.max_concurrent_streams,
            guards(access, refuse_caller, self.audit, REQUEST_METHODS),
        )
        self._server.add_generic_rpc_handlers(self._handlers())
        if options.reflection:
            add_reflection(self._server, *(service.full_name for service in (*SERVICES, HEALTH_SERVICE)))
        if options.port is not None:
            check_port_is_free(options.host, options.port)
        address = listen(self._server, options.uds, options.host, options.port, access.tls)
        self.target = self._address.enter_context(address)
        await self._server.start()
        if options.health_port is not None:
            probes = health_port(self._add_health, options.health_host, options.health_port)
            log.info("health at %s", await self._beside.enter_async_context(probes))
        log.info("listening on %s", self.target)

    async def start(self) -> pb.EngineConfig:
        """Start the engine; requests are admitted when this returns."""
        config = await self.lifecycle.start(self.identity.worker_id, self._advertise_shell)
        self._telemetry.started(config)
        self._background = [
            asyncio.create_task(self._watch_slow_readers(), name="slow readers"),
            asyncio.create_task(self._watch_steps(), name="watchdog"),
            asyncio.create_task(self._telemetry.log_stats(self.lifecycle), name="statistics"),
            *await self._publish_kv_events(),
        ]
        for task in self._background:
            task.add_done_callback(_log_its_failure)
        return config

    async def _publish_kv_events(self) -> Sequence[asyncio.Task[None]]:
        config = self.options.kv_events
        if not config.publishes:
            return ()
        from enginewire.server.services.kv_publisher import publishing

        return await self._beside.enter_async_context(publishing(self.lifecycle.engine, config))

    async def stop(self) -> None:
        """Release the engine and the address. Idempotent."""
        for task in self._background:
            task.cancel()
        try:
            if not self._died.is_set():
                await self.lifecycle.cleanup(abort_in_flight=True)
            if self._server is not None:
                await self._server.stop(STOP_GRACE_SECONDS)
        finally:
            await self._beside.aclose()
            self._address.close()
            await self._telemetry.close()
            if self.audit is not None:
                self.audit.close()

    @property
    def metrics(self) -> MetricsExporter | None:
        """What `--metrics-port` asks for."""
        return self._telemetry.metrics

    async def _start_unless_stopped(self, stop: asyncio.Queue[signal.Signals]) -> bool:
        """True when the engine is up; False when a signal came first."""
        starting = asyncio.create_task(self.start(), name="start")
        stopped = asyncio.create_task(stop.get())
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        came_too = not stopped.cancel()
        if not starting.done():
            await self._give_up(starting)
            return False
        if came_too:  # just when the engine was up: whoever waits next has to hear of it
            stop.put_nowait(stopped.result())
        if starting.cancelled():  # by the engine itself: nobody else has the task
            raise EngineStartFailed("its start was cancelled")
        if (error := starting.exception()) is not None:
            raise EngineStartFailed(str(error) or type(error).__name__) from error
        config = starting.result()
        # All of this stays: looking through it for garbage would only hold up a step.
        gc.freeze()
        log.info("ready: %s, %d KV blocks, %s", config.model, config.total_kv_blocks, self.target)
        systemd.tell(systemd.READY)
        return True

    async def _give_up(self, starting: asyncio.Task[pb.EngineConfig]) -> None:
        """End the start of the engine. One that does not end leaves nothing that could be cleaned up."""
        starting.cancel()
        with ends_at_once():
            await asyncio.wait([starting], timeout=START_GRACE_SECONDS)
        if not starting.done():
            log.error("the engine's start did not end within %g s; going on without it", START_GRACE_SECONDS)
            self._died.set()

    async def _serve_until(self, stop: asyncio.Queue[signal.Signals]) -> None:
        stopped = asyncio.create_task(stop.get())
        died = asyncio.create_task(self._died.wait())
        await asyncio.wait([stopped, died], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        died.cancel()

    async def _drain_until(self, stop: asyncio.Queue[signal.Signals]) -> int:
        """Drain; a second signal ends it at once with 128 + its number."""
        log.info("draining")
        systemd.tell(systemd.STOPPING)
        drained = self.lifecycle.begin_drain(self.lifecycle.default_plan)
        again = asyncio.create_task(stop.get())
        await asyncio.wait([drained, again], return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            log.warning("second signal: ending at once")
            return 128 + again.result()
        again.cancel()
        if self._died.is_set():
            return EXIT_ENGINE_DEAD
        load = self.lifecycle.known_load()
        log.info(
            "drained: %d of %d KV blocks free",
            load.kv_blocks_total - load.kv_blocks_used,
            load.kv_blocks_total,
        )
        return EXIT_OK

    def _advertise_shell(self, config: pb.EngineConfig) -> None:
        """Add what every engine gains by running in this server."""
        names = self.options.served_model_name
        if names:
            config.served_model_name = names[0]
            config.aliases.extend(names[1:])
        if self.metrics is not None:
            config.capabilities.metrics = True
            config.metrics_ranks[:] = _ranks_of(config)
        config.capabilities.cleanup = config.capabilities.watch_load = True
        engine = self.lifecycle.engine
        config.capabilities.multiplexed = not (isinstance(engine, EmbeddingEngine) and engine.only_embeds)
        config.limits.CopyFrom(effective_limits(config))
        if isinstance(self.lifecycle.engine, AdapterEngine):
            config.capabilities.lora &= self.options.adapter_folder is not None
            if config.capabilities.lora:
                config.limits.max_loras = self.options.max_loras
        config.limits.max_request_bytes = self.options.max_message_bytes
        config.limits.max_num_queued_reqs = self.options.max_num_queued_reqs
        config.limits.max_num_queued_tokens = self.options.max_num_queued_tokens
        config.limits.max_stream_buffer_tokens = self.options.stream_buffer_tokens
        config.limits.min_keepalive_interval_ms = MIN_KEEPALIVE_MS

    async def _watch_slow_readers(self) -> None:
        while True:
            await asyncio.sleep(SLOW_CHECK_SECONDS)
            await self.lifecycle.requests.abort_slow()

    async def _watch_steps(self) -> None:
        """Turn a step that never ends, or the engine's death, into NOT_SERVING and the process's end."""
        limit = self.options.watchdog_timeout or math.inf
        while True:
            await asyncio.sleep(min(LIFE_CHECK_SECONDS, limit / 4))
            stalled = self.lifecycle.engine.stalled_for()
            if stalled > limit or stalled == math.inf:
                if stalled == math.inf:
                    log.critical("the engine is dead")
                else:
                    log.critical("no progress for %.1f s; stacks follow", stalled)
                    faulthandler.dump_traceback(sys.stderr)
                await self.lifecycle.declare_dead(stalled)
                self._died.set()
                return

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        buffers = BufferLimits(self.options.stream_buffer_tokens, self.options.slow_consumer_timeout)
        trailer, reports = self._load_reports()
        servicers = (
            EngineServicer(self.lifecycle, buffers, self.identity.lifetime_id, self.access, trailer),
            DiscoveryServicer(self.lifecycle, self.identity),
            KvServicer(self.lifecycle),
            AdminServicer(self.lifecycle),
            EmbeddingServicer(self.lifecycle, self.access),
        )
        return (*map(handlers, SERVICES, servicers), self._health(), *reports)

    def _load_reports(
        self,
    ) -> tuple[Callable[[], tuple[str, bytes]] | None, Sequence[grpc.GenericRpcHandler]]:
        """What makes trailers, and the service beside; none of both unless they were asked for."""
        if not self.options.orca_load_reports:
            return None, ()
        from enginewire.server.services.orca import OrcaServicer
        from enginewire.server.services.orca_messages import SERVICE

        orca = OrcaServicer(self.lifecycle)
        return orca.trailer, (handlers(SERVICE, orca),)

    def _health(self) -> grpc.GenericRpcHandler:
        services = frozenset(service.full_name for service in SERVICES)
        return handlers(HEALTH_SERVICE, EngineHealth(self.lifecycle, services))

    def _add_health(self, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((self._health(),))


class EngineStartFailed(Exception):
    """The engine's `start` raised; the message is one line for the operator."""


def _log_its_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("nobody looks after the %s any more", task.get_name(), exc_info=error)


def _ranks_of(config: pb.EngineConfig) -> range:
    """The data-parallel ranks that an engine serves: one, unless it says otherwise."""
    start = config.data_parallel_start_rank
    return range(start, start + max(config.data_parallel_size, 1))
