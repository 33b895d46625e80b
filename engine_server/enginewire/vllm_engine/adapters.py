"""The adapters that requests can choose, as vLLM has them."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from vllm.lora.request import LoRARequest

from enginewire.server.engines.guides.messages import first_line
from enginewire.server.engines.interface import AdapterSource
from enginewire.server.failures import EngineDead, InvalidRequest
from enginewire.torch_engine.lora.config import WEIGHTS_FILE, broken, read_config_file, read_lora_config
from enginewire.vllm_engine.core import Core


class Adapters:
    """By name. Lives on the event loop."""

    def __init__(self, core: Core, max_rank: int) -> None:
        self._core = core
        self._max_rank = max_rank
        self._numbers = count(1)
        self._loaded: dict[str, LoRARequest] = {}

    def find(self, name: str) -> LoRARequest | None:
        """What a request for the adapter of that name is given; None for the model itself."""
        return self._loaded.get(name)

    async def load(self, source: AdapterSource) -> int:
        """Returns the rank; raises InvalidRequest and EngineDead."""
        rank = await asyncio.to_thread(_rank_of, source.folder, self._max_rank)
        number = next(self._numbers)
        # vLLM knows adapters and their cached blocks by this name: another life of it is another adapter.
        asked = LoRARequest(f"{number}:{source.name}", number, str(source.folder))
        try:
            await self._core.add_adapter(asked)
        except EngineDead:
            raise
        except Exception as error:  # all that vLLM says is a text
            await self._core.remove_adapter(number)
            raise InvalidRequest(f"source: vLLM refuses it: {first_line(error)}", field="source") from error
        self._loaded[source.name] = asked
        return rank

    async def unload(self, name: str) -> None:
        """Forget an adapter that was loaded."""
        asked = self._loaded.pop(name)
        await self._core.remove_adapter(asked.lora_int_id)


def _rank_of(folder: Path, max_rank: int) -> int:
    """Of an adapter that holds nothing but what vLLM may be given: no regular expressions, no pickles."""
    config = read_lora_config(read_config_file(folder), max_rank)
    if not (folder / WEIGHTS_FILE).is_file():
        raise broken(WEIGHTS_FILE, "is missing")
    return config.rank
