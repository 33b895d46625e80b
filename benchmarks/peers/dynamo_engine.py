"""A Dynamo worker that answers as the mocker does: the engine on the other side of `openai_http.py --peer`.

    DYNAMO_PYTHON benchmarks/peers/dynamo_engine.py MODEL_FOLDER ITL_MS PER_MESSAGE

Repeats the prompt and then the end-of-sequence token, over and over: PER_MESSAGE tokens every ITL_MS
milliseconds (0: as fast as it is read). Runs in Dynamo's own environment, so it imports nothing of this
repository.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import uvloop
from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import Context, DistributedRuntime, dynamo_worker

BOS, EOS = 256, 257


class EchoEngine:
    """The mocker's tokens. An engine has one per step; more of them in a message is what it could gather."""

    def __init__(self, itl: float, per_message: int) -> None:
        self._itl = itl
        self._per_message = per_message

    async def generate(self, request: dict, context: Context) -> AsyncIterator[dict]:
        """The tokens, the last ones with a reason."""
        period = [token for token in request["token_ids"] if token not in (BOS, EOS)] + [EOS]
        count = request["stop_conditions"]["max_tokens"]
        tokens = (period * (count // len(period) + 1))[:count]
        due = asyncio.get_running_loop().time()
        for begin in range(0, count, self._per_message):
            if self._itl:
                due += self._itl
                await asyncio.sleep(due - asyncio.get_running_loop().time())
            output = {"token_ids": tokens[begin : begin + self._per_message]}
            if begin + self._per_message >= count:
                output["finish_reason"] = "length"
            yield output


@dynamo_worker()
async def serve(runtime: DistributedRuntime, folder: str, engine: EchoEngine) -> None:
    """Until a signal comes."""
    endpoint = runtime.endpoint("benchmark.backend.generate")
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat,
        endpoint,
        folder,
        "mocker",
        worker_type=WorkerType.Aggregated,
    )
    await endpoint.serve_endpoint(engine.generate)


if __name__ == "__main__":
    folder, itl_ms, per_message = sys.argv[1:]
    uvloop.install()
    asyncio.run(serve(folder, EchoEngine(float(itl_ms) / 1000, int(per_message))))
