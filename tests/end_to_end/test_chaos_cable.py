"""Packets get lost without a word: the engine is in a network of its own, and the cable to it is pulled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tokenizers import Tokenizer

from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.asking import Heard, hear
from tests.chaos.link import Link
from tests.end_to_end.chaos import (
    MOCKER,
    answer_of,
    engines,
    hear_slowly,
    kinds_of_requests,
    migrations,
    replaying,
)
from tests.long import long
from tests.server.serving import until_true

NETWORK, NEAR, FAR = "ew-chaos", "10.203.71.1", "10.203.71.2"
CABLE = f"ewc{os.getpid() % 100_000}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.asynccontextmanager
async def engine_behind_a_cable(
    near: str,
) -> AsyncIterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Its target; how the cable is pulled and put back. Where `ip netns` cannot be, a proxy plays it."""
    try:
        ip("netns", "add", NETWORK)
    except (OSError, subprocess.CalledProcessError):
        async with Link(near) as link:
            yield link.target, link.stall, link.heal
        return
    process = None
    try:
        ip("link", "add", CABLE, "type", "veth", "peer", "name", "far", "netns", NETWORK)
        ip("addr", "add", f"{NEAR}/30", "dev", CABLE)
        ip("-n", NETWORK, "addr", "add", f"{FAR}/30", "dev", "far")
        ip("-n", NETWORK, "link", "set", "far", "up")
        ip("link", "set", CABLE, "up")
        engine = [sys.executable, "-m", "enginewire.server", *MOCKER, "--host", FAR, "--port", "50051"]
        process = await asyncio.create_subprocess_exec(
            "ip", "netns", "exec", NETWORK, *engine, "--allow-insecure", "--log-level", "error"
        )
        pull, put_back = (lambda: ip("link", "set", CABLE, "down")), (lambda: ip("link", "set", CABLE, "up"))
        yield f"{FAR}:50051", pull, put_back
    finally:
        if process is not None:
            process.kill()
            await process.wait()
        ip("netns", "del", NETWORK)


@long
async def test_a_cable_that_is_down_for_a_while_costs_no_answer(folder: Path) -> None:
    vocabulary = Vocabulary(Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode()))
    requests = list(kinds_of_requests(b"pulled", 120))
    async with (
        engines(folder, 2) as slots,
        engine_behind_a_cable(slots[1].target) as (far, pull, put_back),
        replaying([slots[0].target, far], vocabulary) as backend,
        asyncio.timeout(120),
    ):
        for endpoint in backend.engines.all:
            await endpoint.client.wait_ready(60)
        truth = [answer_of(await hear(backend, request)) for request in requests]
        all_heard = [Heard() for _ in requests]
        tasks = [
            asyncio.create_task(hear_slowly(backend, request, heard))
            for request, heard in zip(requests, all_heard, strict=True)
        ]
        await until_true(lambda: all(heard.outputs for heard in all_heard))
        assert backend.engines.all[1].in_flight
        pull()
        assert [answer_of(heard) for heard in await asyncio.gather(*tasks)] == truth
        assert any(migrations(heard) for heard in all_heard)
        put_back()
        # What the far engine still says of them is nobody's answer; it is free again, and used.
        await backend.engines.all[1].client.wait_ready(60)
        async with asyncio.timeout(60):
            while (await backend.engines.all[1].client.load()).running:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.05)
