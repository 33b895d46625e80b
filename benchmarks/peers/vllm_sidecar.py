"""What stands around vLLM's EngineCore, and what it costs: our server, `AsyncLLM`, and `vllm serve`.

    .venv-vllm/bin/python benchmarks/peers/vllm_sidecar.py [--requests 32 256] [--tokens 64] [--rounds 3]
        [--json]

enginewire   `enginewire-server --engine vllm`, and a backend in this process
async-llm    `AsyncLLM.generate` in this process, without a server
vllm-serve   vLLM's server of OpenAI's API, and OpenAI's client in this process

Each has an EngineCore of its own with the same sizes, and brings the text of `builtin:demo`, greedy, to one
asyncio consumer per request. Rounds are interleaved and medians compared; the other sides are idle meanwhile.

`core_us` is processor time of EngineCore and its workers per token, `server_us` that of the server,
`caller_us` that of this process. `cpu` of a ratio compares server and caller together with those of the peer:
less is better. `tokens_per_s` compares the clock: more is better, and says little on a machine with other
work. The last line with --json is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from statistics import median

import psutil
from dynamo_peer import free_port
from tokenizers import Tokenizer
from vllm_peer import ENGINE, ENVIRONMENT, SIZES, START_SECONDS, serve

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.program import event_loop
from enginewire.server.demo_model import PATH

PROMPT = 32
VOCAB = range(3, 1536)

Ask = Callable[[list[int], int], Awaitable[int]]
"""Sends a prompt, asks for so many tokens, and returns how many came."""
Figures = dict[str, float]


@dataclass(frozen=True)
class Side:
    """Whom to ask, and the processes that it started: the server, if there is one, and EngineCore's."""

    ask: Ask
    server: list[psutil.Process]
    core: list[psutil.Process]

    def processor_seconds(self) -> dict[str, float]:
        """What each part has used until now."""
        parts = {"core": self.core, "server": self.server, "caller": [psutil.Process()]}
        return {name: sum(map(_used, processes)) for name, processes in parts.items()}


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@asynccontextmanager
async def enginewire(folder: Path) -> AsyncIterator[tuple[Ask, int]]:
    """Our server, over one multiplexed stream."""
    command = ["-m", "enginewire.server", *ENGINE, "--uds", f"{folder}/engine.sock"]
    async with running(command) as process, EngineClient(f"unix:{folder}/engine.sock") as client:
        await client.wait_ready(START_SECONDS)
        files = await client.tokenizer_files()
        backend = Backend(client, Vocabulary(Tokenizer.from_str(files["tokenizer.json"].decode())))

        async def ask(prompt: list[int], tokens: int) -> int:
            request = pb.PreprocessedRequest(
                token_ids=prompt,
                sampling_options=pb.SamplingOptions(temperature=0.0),
                stop_conditions=pb.StopConditions(max_tokens=tokens, ignore_eos=True),
            )
            heard = 0
            async for item in backend.generate(request):
                assert item.data is not None, item.error
                heard += len(item.data.token_ids)
            return heard

        yield ask, process.pid


@asynccontextmanager
async def async_llm(folder: Path) -> AsyncIterator[tuple[Ask, int]]:
    """vLLM's own way in, with what its server asks of it for a stream."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(PATH), enforce_eager=True, **SIZES))
    names = count()

    async def ask(prompt: list[int], tokens: int) -> int:
        delta = RequestOutputKind.DELTA
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=delta)
        heard = 0
        async for output in llm.generate({"prompt_token_ids": prompt}, params, f"r{next(names)}"):
            heard += len(output.outputs[0].token_ids)
        return heard

    try:
        yield ask, 0
    finally:
        llm.shutdown()


@asynccontextmanager
async def vllm_serve(folder: Path) -> AsyncIterator[tuple[Ask, int]]:
    """vLLM's server of OpenAI's API, with OpenAI's client."""
    from openai import AsyncOpenAI, OpenAIError

    port = free_port()
    async with (
        running(serve(port, "demo")) as process,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=START_SECONDS) as client,
    ):
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    await client.models.list()
                    break
                except OpenAIError:
                    assert process.returncode is None, "vllm serve ended"
                    await asyncio.sleep(0.5)  # nothing tells of it

        async def ask(prompt: list[int], tokens: int) -> int:
            stream = await client.completions.create(
                model="demo",
                prompt=prompt,
                max_tokens=tokens,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            heard = 0
            async for chunk in stream:
                heard = chunk.usage.completion_tokens if chunk.usage else heard
            return heard

        yield ask, process.pid


@asynccontextmanager
async def running(arguments: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python process that ends with the context."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=sys.stderr)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


SIDES = {"enginewire": enginewire, "async-llm": async_llm, "vllm-serve": vllm_serve}


async def start(name: str, folder: Path, stack: AsyncExitStack) -> Side:
    """A side that has answered once; what has come below this process is its own."""
    before = set(psutil.Process().children(recursive=True))
    ask, server = await stack.enter_async_context(SIDES[name](folder))
    assert await ask([5, 6, 7], 4) == 4
    own = [each for each in psutil.Process().children(recursive=True) if each not in before]
    return Side(
        ask, [each for each in own if each.pid == server], [each for each in own if each.pid != server]
    )


async def measure(side: Side, requests: int, tokens: int) -> Figures:
    """One round, all requests at once."""
    random = Random(1)
    prompts = [[random.choice(VOCAB) for _ in range(PROMPT)] for _ in range(requests)]
    gc.collect()
    before, begin = side.processor_seconds(), time.perf_counter()
    heard = await asyncio.gather(*(side.ask(prompt, tokens) for prompt in prompts))
    seconds, after = time.perf_counter() - begin, side.processor_seconds()
    assert heard == [tokens] * requests, "lost tokens"
    total = requests * tokens
    used = {f"{part}_us": (after[part] - before[part]) * 1e6 / total for part in before}
    return {"tokens_per_s": total / seconds, **used}


async def compare(options: argparse.Namespace) -> dict[int, dict[str, Figures]]:
    """Medians by requests and side."""
    found: dict[int, dict[str, list[Figures]]] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ew-")))
        sides = {name: await start(name, folder, stack) for name in SIDES}
        gc.collect()
        gc.freeze()  # as vLLM's server does: what is loaded stays
        names = list(sides)
        for number in range(options.rounds + 1):
            # Everybody is first by turns: what ran just before has warmed some caches and cooled others.
            names = names[1:] + names[:1]
            for requests in options.requests:
                for name in names:
                    figures = await measure(sides[name], requests, options.tokens)
                    if number:  # the first round is to warm up
                        found.setdefault(requests, {}).setdefault(name, []).append(figures)
    return {
        requests: {name: _medians(rounds) for name, rounds in row.items()} for requests, row in found.items()
    }


def _medians(rounds: list[Figures]) -> Figures:
    return {key: round(median(each[key] for each in rounds), 1) for key in rounds[0]}


def _ratio(ours: Figures, other: Figures) -> Figures:
    around = [each["server_us"] + each["caller_us"] for each in (ours, other)]
    return {
        "cpu": round(around[0] / around[1], 2),
        "tokens_per_s": round(ours["tokens_per_s"] / other["tokens_per_s"], 2),
    }


def summary(medians: dict[int, dict[str, Figures]], options: argparse.Namespace) -> dict[str, object]:
    made: dict[str, object] = {"tokens": options.tokens, "load_average": round(os.getloadavg()[0], 1)}
    made["medians"] = medians
    for peer in ("async-llm", "vllm-serve"):
        ratios = {requests: _ratio(row["enginewire"], row[peer]) for requests, row in medians.items()}
        made[f"ratio_to_{peer.replace('-', '_')}"] = ratios
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[32, 256], help="at the same time")
    parser.add_argument("--tokens", type=int, default=64, help="of each request")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="a last line for programs")
    options = parser.parse_args()
    os.environ |= {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    medians = event_loop.run(compare(options))
    for requests, row in medians.items():
        for name, figures in row.items():
            print(f"{requests:4} {name:<11}", *(f"{value:10,.1f} {key}" for key, value in figures.items()))
    if options.json:
        print(json.dumps(summary(medians, options)))


if __name__ == "__main__":
    main()
