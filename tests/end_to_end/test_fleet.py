"""The list of engines changes under load: who leaves is not missed, who joins is used."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

from tests.backend.discovery.test_target_file import replace
from tests.backend.our_processes import load_of, run
from tests.certificates import Authority
from tests.deploy.test_upgrade import backend, load
from tests.end_to_end.chaos import EngineSlot, engines
from tests.server.serving import until_true

NUM_REQUESTS, NUM_WARMUPS = 200, 1
MOCKER = ("--engine", "mocker", "--mocker-itl-ms", "8")


def write(path: Path, slots: Sequence[EngineSlot]) -> None:
    replace(path, "".join(f"{slot.target}\n" for slot in slots))


def finished(slot: EngineSlot) -> int:
    """How many requests this life has answered."""
    return load_of(slot.target).requests_finished


def is_idle(slot: EngineSlot) -> bool:
    """It has answered all that it has got."""
    seen = load_of(slot.target)
    return not seen.running + seen.waiting


async def test_no_request_is_lost_or_sent_twice_while_the_list_changes(folder: Path) -> None:
    path = folder / "engines.txt"
    async with engines(folder, 3, MOCKER) as (first, second, third):
        write(path, [first, second])
        async with backend(folder, [f"file:{path}"], "--target-refresh-interval=0.1") as address:
            loading = asyncio.create_task(load(address, NUM_REQUESTS))
            await until_true(lambda: finished(first) > 0)
            # One leaves and ends, with answers under way; another one joins.
            write(path, [second, third])
            await until_true(lambda: finished(third) > 0)
            await until_true(lambda: is_idle(first))
            num_before = finished(first)
            assert await first.end(signal.SIGTERM) == 0
            # The first comes back as another process, and the second leaves.
            await first.start()
            write(path, [first, third])
            await until_true(lambda: is_idle(second))
            assert not loading.done()
            seen = await loading
            page = await asyncio.to_thread(lambda: urlopen(f"{address}/metrics").read().decode())
        shares = num_before, finished(first), finished(second), finished(third)
    assert (seen["completed"], seen["failed"]) == (NUM_REQUESTS, 0)
    assert seen["total_output_tokens"] == NUM_REQUESTS * 100
    assert min(shares) > 0
    assert sum(shares) == NUM_REQUESTS + NUM_WARMUPS, "each of them once"
    retries = [line for line in page.splitlines() if line.startswith("enginewire:retries_total")]
    assert [line.split()[-1] for line in retries] == ["0.0"]


def test_the_certificate_of_each_address_has_the_name_that_was_looked_up(launch, folder: Path) -> None:
    authority = Authority(folder)
    own = authority.signed("engine", "localhost")
    engine = launch("--port", "0", f"--ssl-certfile={own.certificate}", f"--ssl-keyfile={own.key}")
    port = engine.target().rpartition(":")[2]
    trusting = [f"--target-ssl-ca-certs={authority.file}", "--raw", "--prompt=hi", "--max-tokens=2"]
    answered = run("generate", f"--target=dns:///localhost:{port}", *trusting)
    assert (answered.returncode, answered.stdout) == (0, "hi\n"), answered.stderr
