from __future__ import annotations

import asyncio
import os

from enginewire.conformance.running.servers.processes import alive, can_look, descendants, end


async def test_children_in_groups_of_their_own_are_found_and_ended() -> None:
    assert can_look()
    shell = await asyncio.create_subprocess_exec(
        "sh", "-c", "setsid sleep 60 & echo started; wait", stdout=asyncio.subprocess.PIPE
    )
    assert shell.stdout is not None
    await shell.stdout.readline()
    below = descendants(shell.pid)
    assert len(below) == 1
    assert shell.pid in descendants(os.getpid())
    assert alive(below, -1) == below
    end(below)
    await shell.wait()
    assert alive(below, -1) == set()


async def test_a_process_that_is_gone_is_not_ended_twice() -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    end({process.pid})
    assert alive({process.pid}, -1) == set()
