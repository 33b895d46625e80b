"""The worker in Dynamo's runtime: how frontends find it, and when they do.

The one place that imports Dynamo. Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Final

import grpc
from dynamo.llm import (
    KvEventPublisher,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerMetricsPublisher,
    WorkerType,
    exceptions,
    register_model,
)
from dynamo.runtime import DistributedRuntime

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import failed
from enginewire.backend.frontends.dynamo.card import check_role, model_name, write_card
from enginewire.backend.frontends.dynamo.failures import EXCEPTION_NAMES
from enginewire.backend.frontends.dynamo.options import HOST, DynamoOptions
from enginewire.backend.frontends.dynamo.watch import follow_kv_events, follow_load
from enginewire.backend.frontends.dynamo.worker import Worker
from enginewire.backend.processes.stop_signals import StopSignals
from enginewire.backend.prompting.tokenizer import BackendTokenizer, read_files

# What the frontend may send now and then to see whether the worker lives, where it is told to.
PROBE: Final = {"token_ids": [0], "_HEALTH_CHECK": True}
CARD_FIELDS: Final = ("context_length", "total_kv_blocks", "max_num_seqs", "max_num_batched_tokens")


# What the runtime may take to let go of its connections.
END_SECONDS: Final = 5.0


async def serve(client: EngineClient, options: DynamoOptions, signals: StopSignals) -> int:
    """Be a worker until the first signal. Raises RequestFailed and InvalidTokenizer."""
    info = await client.wait_ready(options.connect_timeout)
    check_role(info.config)
    worker = Worker(client, {name: getattr(exceptions, name) for name in EXCEPTION_NAMES})
    runtime = runtime_of(options)
    endpoint = runtime.endpoint(options.path)
    presence = Presence(endpoint, client, info)
    tasks = [asyncio.ensure_future(endpoint.serve_endpoint(worker.generate, health_check_payload=PROBE))]
    try:
        await register(endpoint, client, info.config, options)
        if options.kv_routing:
            await presence.publish_load()
            tasks += kv_event_tasks(endpoint, client, info.config)
        tasks.append(asyncio.create_task(follow_load(client, presence.heard), name="follow the load"))
        tell(f"serving {options.served_model_name or model_name(info.config)} as {options.path}")
        await first_of(signals, tasks)
        tell("draining")
        await presence.leave()
        await asyncio.sleep(options.grace_period)
        await worker.drain(options.shutdown_timeout)
        return 0
    finally:
        runtime.shutdown()
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks, timeout=END_SECONDS)


def runtime_of(options: DynamoOptions) -> Any:
    """Dynamo's connections, on the running event loop. It reads where to listen from the environment."""
    os.environ[HOST] = options.host
    os.environ.setdefault("DYN_LOG", options.log_level)
    return DistributedRuntime(
        asyncio.get_running_loop(),
        options.discovery_backend,
        options.request_plane,
        event_plane=options.event_plane,
    )


async def register(
    endpoint: Any, client: EngineClient, config: pb.EngineConfig, options: DynamoOptions
) -> None:
    """Let frontends know of the model. Raises RequestFailed and InvalidTokenizer."""
    files = await (
        asyncio.to_thread(read_files, options.tokenizer) if options.tokenizer else client.tokenizer_files()
    )
    tokenizer = await asyncio.to_thread(BackendTokenizer.from_files, files)
    folder = await asyncio.to_thread(write_card, options.card_folder, config, files)
    has_blocks = config.HasField("kv_cache_block_size")
    await register_model(
        ModelInput.Tokens,
        # Without a template there is no conversation.
        ModelType.Chat | ModelType.Completions if tokenizer.chat_template else ModelType.Completions,
        endpoint,
        str(folder),
        options.served_model_name or model_name(config),
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=config.kv_cache_block_size if has_blocks else None,
        runtime_config=runtime_config(config, options),
    )


def runtime_config(config: pb.EngineConfig, options: DynamoOptions) -> Any:
    """What the router goes by, and how the frontend reads the text."""
    facts = ModelRuntimeConfig()
    for name in CARD_FIELDS:
        if config.HasField(name):
            setattr(facts, name, getattr(config, name))
    facts.data_parallel_size, facts.data_parallel_start_rank = len(ranks_of(config)), ranks_of(config).start
    facts.tool_call_parser = options.tool_call_parser or None
    facts.reasoning_parser = options.reasoning_parser or None
    facts.enable_local_indexer = facts.kv_event_publishing_enabled = publishes(config, options)
    return facts


def publishes(config: pb.EngineConfig, options: DynamoOptions) -> bool:
    """The router hears of what is cached."""
    return options.kv_routing and config.capabilities.kv_events


def ranks_of(config: pb.EngineConfig) -> range:
    """The data-parallel ranks behind the engine."""
    return range(
        config.data_parallel_start_rank, config.data_parallel_start_rank + max(1, config.data_parallel_size)
    )


def kv_event_tasks(endpoint: Any, client: EngineClient, config: pb.EngineConfig) -> list[asyncio.Task[None]]:
    """One for each rank, if the engine tells what it caches."""
    if not config.capabilities.kv_events:
        return []
    tasks = []
    for rank in ranks_of(config):
        publisher = KvEventPublisher(
            endpoint, kv_block_size=config.kv_cache_block_size, dp_rank=rank, enable_local_indexer=True
        )
        follow = follow_kv_events(client, rank, publisher.publish_batch)
        tasks.append(asyncio.create_task(follow, name=f"follow the cache of rank {rank}"))
    return tasks


async def first_of(signals: StopSignals, tasks: list[asyncio.Future[Any]]) -> None:
    """Until the first signal. Raises what ends a task before that."""
    first = asyncio.create_task(signals.first())
    done, _ = await asyncio.wait([first, *tasks], return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    for task in done - {first}:
        task.result()
        raise failed(grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_INTERNAL, "Dynamo's runtime has ended")


def tell(what: str) -> None:
    """Say it on standard error."""
    print(what, file=sys.stderr, flush=True)


class Presence:
    """Whether frontends are told of the worker: only while its engine takes requests."""

    def __init__(self, endpoint: Any, client: EngineClient, info: pb.GetEngineInfoResponse) -> None:
        self._endpoint = endpoint
        self._client = client
        self._info = info
        self._is_there = True
        self._publisher: Any = None

    async def publish_load(self) -> None:
        """From now on tell the router, too."""
        self._publisher = WorkerMetricsPublisher()
        await self._publisher.create_endpoint(self._endpoint)

    async def heard(self, load: pb.Load) -> None:
        """The engine reported. Raises RequestFailed when it is another one."""
        is_ready = load.state == pb.ENGINE_STATE_READY
        if is_ready and load.engine_lifetime_id != self._info.engine_lifetime_id:
            await self._identify()
        if is_ready != self._is_there:
            await self._register() if is_ready else await self.leave()
        if self._publisher is not None:
            self._publish(load)

    def _publish(self, load: pb.Load) -> None:
        if not load.ranks:
            self._publisher.publish(ranks_of(self._info.config).start, kv_used_blocks=load.kv_blocks_used)
        for rank in load.ranks:
            self._publisher.publish(rank.dp_rank, kv_used_blocks=rank.kv_blocks_used)

    async def _identify(self) -> None:
        """It began another life: frontends know the model as it was."""
        self._client.forget()
        info = await self._client.info(END_SECONDS)
        if info.config != self._info.config:
            code, reason = grpc.StatusCode.FAILED_PRECONDITION, pb.ERROR_REASON_INVALID_REQUEST
            raise failed(
                code, reason, "the engine came back with another configuration: start the worker again"
            )
        self._info = info

    async def _register(self) -> None:
        await self._endpoint.register_endpoint_instance()
        self._is_there = True

    async def leave(self) -> None:
        """Frontends send nothing more, as soon as they have heard."""
        if self._is_there:
            self._is_there = False
            await self._endpoint.unregister_endpoint_instance()
