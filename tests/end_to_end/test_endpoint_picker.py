"""The model server protocol of the Gateway API inference extension, as its endpoint picker reads it.

docs/proposals/003-model-server-protocol of that project names the metrics, their kinds and labels. The picker
takes the newest sample of each, numbers in labels as integers, and names separated by commas.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.request import Request, urlopen

from tests.deploy.test_upgrade import backend
from tests.patience import PATIENCE_SECONDS
from tests.server.telemetry.metrics.scraping import Scrape, scrape

GAUGES = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc")
LORA = "vllm:lora_requests_info"


def post(address: str, path: str, **body: object) -> bytes:
    request = Request(f"{address}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return bytes(answer.read())


def numbers(page: Scrape) -> list[float]:
    """Waiting, running, KV cache in use, block size, number of blocks."""
    families = {family.name: family for family in page.families}
    assert {families[name].type for name in (*GAUGES, "vllm:cache_config_info")} == {"gauge"}
    (cache,) = families["vllm:cache_config_info"].samples
    gauges = [families[name].samples[0].value for name in GAUGES]
    return [*gauges, int(cache.labels["block_size"]), int(cache.labels["num_gpu_blocks"])]


def adapters(page: Scrape) -> tuple[int, set[str], set[str], float]:
    """How many fit, those that run, those that wait, and when that was."""
    (family,) = [family for family in page.families if family.name == LORA]
    newest = max(family.samples, key=lambda sample: sample.value)
    running, waiting = (
        {name.strip() for name in newest.labels[f"{kind}_lora_adapters"].split(",") if name.strip()}
        for kind in ("running", "waiting")
    )
    assert family.type == "gauge"
    return int(newest.labels["max_lora"]), running, waiting, newest.value


async def test_a_picker_reads_load_cache_and_adapters_of_engine_and_backend(launch, folder: Path) -> None:
    for name in ("one", "two"):
        (folder / "adapters" / name).mkdir(parents=True)
    server = launch(
        *("--metrics-port", "0", "--mocker-itl-ms", "10", "--max-num-seqs", "1"),
        *("--adapter-folder", str(folder / "adapters"), "--num-kv-blocks", "512"),
    )
    target, url = server.target(), server.wait_for("metrics at ").removeprefix("metrics at ")
    async with backend(folder, [target], "--allow-runtime-lora-updating") as address:
        for name in ("one", "two"):
            post(address, "/v1/load_lora_adapter", lora_name=name, lora_path=name)
        asked = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True}
        calls = [
            asyncio.create_task(asyncio.to_thread(post, address, "/v1/completions", model="one", **asked))
        ]
        pages = [Scrape(""), Scrape("")]

        async def look() -> None:
            pages[:] = [await scrape(url), await scrape(f"{address}/metrics")]

        async def until_runs(running: int, waiting: int) -> None:
            while True:
                await look()
                if all(numbers(page)[:2] == [waiting, running] for page in pages):
                    return

        await until_runs(1, 0)
        calls.append(
            asyncio.create_task(asyncio.to_thread(post, address, "/v1/completions", model="two", **asked))
        )
        await until_runs(1, 1)
        for page in pages:
            assert 0 < numbers(page)[2] < 1
            assert numbers(page)[3:] == [16, 512]
        # The first token is on its way from the engine to the backend.
        while adapters(pages[1])[1:3] != ({"one"}, {"two"}):
            assert not any(call.done() for call in calls)
            await look()
        of_engine, of_backend = (adapters(page) for page in pages)
        assert of_engine[1] == {"one", "two"}
        assert of_engine[0] == of_backend[0] > 0
        assert abs(of_engine[3] - of_backend[3]) < 60
        await asyncio.gather(*calls)
        await look()
        assert [adapters(page)[1:3] for page in pages] == [(set(), set())] * 2
