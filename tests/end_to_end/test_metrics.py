"""A real server process, scraped over HTTP while it serves, and judged by the kit."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest

from tests.long import long
from tests.server.serving import ask
from tests.server.telemetry.metrics.scraping import documented, scrape


@long
@pytest.mark.parametrize(("engine", "arguments"), [("mocker", ["--mocker-itl-ms", "2"]), ("torch", [])])
async def test_a_server_is_scraped_while_it_serves_and_the_kit_agrees(launch, connect, engine, arguments):
    server = launch("--metrics-port", "0", *arguments, engine=engine)
    client = connect(server.target())
    url = server.wait_for("metrics at ").removeprefix("metrics at ")
    at_rest = await scrape(url)
    wanted = set(documented("Of every engine")) - {"vllm:lora_requests_info"}
    if engine == "torch":
        wanted |= set(documented("Of the torch engine"))
    assert set(at_rest.names()) == wanted
    call = client.engine.Generate(ask("a", max_tokens=8))
    assert sum([len(response.output.token_ids) async for response in call]) == 8
    found = await scrape(url)
    assert found("vllm:generation_tokens_total") == 8
    assert found("vllm:request_success_total", finished_reason="length") == 1
    assert found("vllm:request_queue_time_seconds_count") == 1
    command = [
        sys.executable,
        "-m",
        "enginewire.conformance",
        "--target",
        server.target(),
        "--metrics-url",
        url,
    ]
    judged = await asyncio.to_thread(
        subprocess.run, [*command, "--profile", "metrics", "--strict"], capture_output=True, text=True
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    # An engine may embed too quickly for its requests to be counted.
    assert re.search(r"\n(5 PASS|4 PASS, 1 N/A), [0-9]+ NOT-RUN", judged.stdout), judged.stdout
