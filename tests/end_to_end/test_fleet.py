"""The list of engines changes under load: who leaves is not missed, who joins is used."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

from enginewire import v1 as pb
from tests.backend.engines.discovery.test_target_file import replace
from tests.backend.our_processes import run
from tests.certificates import Authority
from tests.deploy.test_upgrade import MOCKER, backend, callers, has_answered, load_when
from tests.end_to_end.chaos.stage import EngineSlot, engines
from tests.long import long


def write(path: Path, slots: Sequence[EngineSlot]) -> None:
    replace(path, "".join(f"{slot.target}\n" for slot in slots))


def is_idle(load: pb.Load) -> bool:
    """It has answered all that it has got."""
    return not load.running + load.waiting


@long
async def test_no_request_is_lost_or_sent_twice_while_the_list_changes(folder: Path) -> None:
    path = folder / "engines.txt"
    async with engines(folder, 3, MOCKER) as (first, second, third):
        write(path, [first, second])
        async with backend(folder, [f"file:{path}"], "--target-refresh-interval=0.1") as address:
            async with callers([address]) as calls:
                await load_when(first, has_answered)
                # One leaves and ends, with answers under way; another one joins.
                write(path, [second, third])
                await load_when(third, has_answered)
                before = await load_when(first, is_idle)
                assert await first.end(signal.SIGTERM) == 0
                # The first comes back as another process, and the second leaves.
                await first.start()
                write(path, [first, third])
                await load_when(second, is_idle)
                await load_when(first, has_answered)
            page = await asyncio.to_thread(lambda: urlopen(f"{address}/metrics").read().decode())
        loads = [before, *[await load_when(slot, is_idle) for slot in (first, second, third)]]
        shares = [load.requests_finished for load in loads]
    assert min(shares) > 0
    assert sum(shares) == calls.whole[address], "each of them once"
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
