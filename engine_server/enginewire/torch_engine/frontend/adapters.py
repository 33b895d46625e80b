"""The adapters that requests can choose: loaded by the step thread, found by the event loop.

Importing this module imports no torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from enginewire.server.engines.interface import AdapterSource
from enginewire.torch_engine.lora.config import LoraConfig, read_files, read_lora_config
from enginewire.torch_engine.requests.adapter import Adapter
from enginewire.torch_engine.step_thread import StepThread

if TYPE_CHECKING:
    from torch import Tensor

    from enginewire.torch_engine.core import EngineCore
    from enginewire.torch_engine.lora.projections import AdaptedProjections, LowRank

SECONDS_BETWEEN_STEPS = 0.02
"""How long requests that run are held up at a time while an adapter is loaded."""
LARGEST_FLOAT_BYTES = 8
HEADER_BYTES = 16 * 2**20


class LoadedAdapters:
    """By name. Lives on the event loop; only the step thread touches the tensors."""

    def __init__(self, projections: AdaptedProjections, like: Tensor, max_rank: int) -> None:
        """`like` has the dtype and the device of the model."""
        self._projections = projections
        self._like = like
        self._max_rank = max_rank
        self._loaded: dict[str, Adapter] = {}

    def find(self, name: str) -> Adapter | None:
        """The adapter of that name, or None."""
        return self._loaded.get(name)

    async def load(self, source: AdapterSource, thread: StepThread) -> int:
        """Returns the rank; raises InvalidRequest, and EngineDead when `thread` has ended."""
        config, weights = await asyncio.to_thread(self._read, source.folder)
        pieces: list[Iterator[tuple[int, LowRank]]] = []
        low_ranks: dict[int, LowRank] = {}

        def convert_some(core: EngineCore) -> bool:
            """True when everything is converted. A step that waits does not wait for all of it."""
            from enginewire.torch_engine.lora.weights import read_low_ranks

            end = time.monotonic() + SECONDS_BETWEEN_STEPS
            if not pieces:
                pieces.append(read_low_ranks(weights, config, self._projections, self._like))
            for number, low_rank in pieces[0]:
                low_ranks[number] = low_rank
                if time.monotonic() > end:
                    return False
            return True

        while not await thread.ask(convert_some):
            pass
        self._loaded[source.name] = Adapter(source.name, source.digest, low_ranks)
        return config.rank

    def unload(self, name: str) -> None:
        """Nothing happens to requests that hold the adapter."""
        self._loaded.pop(name, None)

    def _read(self, folder: Path) -> tuple[LoraConfig, bytes]:
        largest = self._projections.width * self._max_rank * LARGEST_FLOAT_BYTES + HEADER_BYTES
        config, weights = read_files(folder, largest)
        return read_lora_config(config, self._max_rank), weights
