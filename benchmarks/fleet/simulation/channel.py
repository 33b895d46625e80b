"""The gRPC channel to a simulated engine: the backend's own client works on it and notices nothing.

Speaks GetEngineInfo, GetLoad, WatchLoad, Generate and Abort of the contract, as bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from enginewire import v1 as pb

from .engine import Engine, Job, Speed, block_numbers

READY = pb.ENGINE_STATE_READY


class Process:
    """A process with an engine, which may die or freeze. `latency` is the way there and back, in seconds."""

    def __init__(self, number: int, speed: Speed, latency: float = 0.0005) -> None:
        self.target = f"sim:{number}"
        self.engine = Engine(speed)
        self.latency = latency
        self.is_gone = self.is_frozen = False
        self.life = f"life-{number}"
        self._ends: set[asyncio.Event] = set()
        self._speed = speed
        self._info = pb.GetEngineInfoResponse(
            engine_name="simulation",
            engine_lifetime_id=self.life,
            worker_id=number,
            contract_revision=pb.CONTRACT_REVISION,
            minimum_client_revision=1,
            maximum_client_revision=pb.CONTRACT_REVISION,
        )
        config = self._info.config
        config.model, config.vocab_size, config.context_length = "simulation", 258, 32_768
        config.kv_cache_block_size, config.total_kv_blocks = 16, speed.num_blocks
        config.capabilities.resume = config.capabilities.seed = True

    def die(self) -> None:
        """Connections end at once, as when a process is killed."""
        self.is_gone = True
        self.engine.stop()
        for end in self._ends:
            end.set()

    def freeze(self, noticed_after: float) -> None:
        """Nothing comes any more; after so many seconds the missing answers to pings end the connections."""
        self.is_frozen = True
        self.engine.stop()
        asyncio.get_running_loop().call_later(noticed_after, self.die)

    def load(self) -> pb.Load:
        """What it has to do now."""
        engine = self.engine
        return pb.Load(
            state=READY,
            engine_lifetime_id=self.life,
            running=engine.running,
            waiting=len(engine.waiting),
            kv_blocks_used=engine.blocks_used,
            kv_blocks_total=self._speed.num_blocks,
            step=engine.step,
        )

    async def answered(self, seconds: float | None) -> None:
        """The way there and back. Raises AioRpcError where nobody answers."""
        await asyncio.sleep(self.latency)
        if self.is_frozen and not self.is_gone:
            end = asyncio.Event()
            with self.until_gone(end):
                try:
                    async with asyncio.timeout(seconds):
                        await end.wait()
                except TimeoutError:
                    raise broken(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        if self.is_gone:
            raise broken(grpc.StatusCode.UNAVAILABLE, "connection refused")

    def until_gone(self, end: asyncio.Event) -> _Until:
        """`end` is set when the process goes, as long as the context lasts."""
        return _Until(self._ends, end)

    @property
    def info(self) -> pb.GetEngineInfoResponse:
        """Who it is."""
        return self._info


class _Until:
    def __init__(self, ends: set[asyncio.Event], end: asyncio.Event) -> None:
        self._ends, self._end = ends, end

    def __enter__(self) -> None:
        self._ends.add(self._end)

    def __exit__(self, *_: object) -> None:
        self._ends.discard(self._end)


def broken(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """A failure of gRPC itself, without details of an engine."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


class Channel:
    """As much of grpc.aio.Channel as the backend uses without multiplexing."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def unary_unary(self, method: str, *_: object) -> Any:
        """GetEngineInfo, GetLoad or Abort."""
        process, name = self._process, method.rpartition("/")[2]

        async def call(data: bytes, timeout: float | None = None, metadata: Sequence[Any] = ()) -> bytes:
            await process.answered(timeout)
            if name == "GetEngineInfo":
                return process.info.SerializeToString()
            if name == "GetLoad":
                return pb.GetLoadResponse(load=process.load()).SerializeToString()
            return pb.AbortResponse().SerializeToString()

        return call

    def unary_stream(self, method: str, *_: object) -> Any:
        """Generate or WatchLoad."""
        process = self._process
        if method.endswith("/Generate"):
            return lambda data, timeout=None, metadata=(): GenerateCall(process, data)
        return lambda data: WatchCall(process, data)

    def stream_stream(self, method: str, *_: object) -> Any:
        """Multiplexing is not simulated."""
        return None

    def get_state(self) -> grpc.ChannelConnectivity:
        """It is always there."""
        return grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        """Nothing to do."""


class GenerateCall:
    """One request. Its messages come as the engine's steps make them."""

    def __init__(self, process: Process, data: bytes) -> None:
        self._process = process
        self._request = pb.GenerateRequest.FromString(data)
        self._outputs: list[tuple[list[int], bool]] = []
        self._news = asyncio.Event()
        self._job: Job | None = None

    def _emit(self, tokens: list[int], is_last: bool) -> None:
        self._outputs.append((tokens, is_last))
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        process, part = self._process, self._request.request
        with process.until_gone(self._news):
            await process.answered(None)
            before = len(part.resume.choices[0].generated_token_ids) if part.resume.choices else 0
            left = part.stop_conditions.max_tokens - before
            prompt = [*part.token_ids]
            self._job = Job(prompt, block_numbers(prompt), left, before, self._emit)
            process.engine.submit(self._job)
            life, position = process.life, before
            yield pb.GenerateResponse(
                request_id=self._request.request_id,
                engine_lifetime_id=life,
                output=pb.LLMEngineOutput(first_output_position=before),
            ).SerializeToString()
            while True:
                await self._news.wait()
                self._news.clear()
                outputs, self._outputs = self._outputs, []
                for tokens, is_last in outputs:
                    yield self._message(tokens, position, is_last)
                    position += len(tokens)
                    if is_last:
                        return
                if process.is_gone:
                    raise broken(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    def _message(self, tokens: list[int], position: int, is_last: bool) -> bytes:
        output = pb.LLMEngineOutput(token_ids=tokens, first_output_position=position)
        if is_last:
            prompt, total = len(self._request.request.token_ids), position + len(tokens)
            output.finish_reason = pb.FINISH_REASON_LENGTH
            usage = output.completion_usage
            usage.prompt_tokens, usage.completion_tokens = prompt, total
            usage.total_tokens = prompt + total
            usage.prompt_tokens_details.cached_tokens = self._job.num_cached if self._job else 0
        return pb.GenerateResponse(output=output).SerializeToString()

    def cancel(self) -> None:
        """The caller wants no more."""
        if self._job is not None:
            self._process.engine.abort(self._job)


class WatchCall:
    """The load now and, as often as was asked, after changes."""

    def __init__(self, process: Process, data: bytes) -> None:
        self._process = process
        self._interval = pb.WatchLoadRequest.FromString(data).min_interval_ms / 1000

    async def __aiter__(self) -> AsyncIterator[bytes]:
        process, end, last = self._process, asyncio.Event(), -1
        with process.until_gone(end):
            while True:
                await process.answered(None)
                if process.engine.step != last:
                    last = process.engine.step
                    yield pb.WatchLoadResponse(load=process.load()).SerializeToString()
                await asyncio.sleep(self._interval)

    def cancel(self) -> None:
        """Nothing to do."""
