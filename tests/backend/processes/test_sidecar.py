from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from enginewire.backend.processes.sidecar import SidecarDied, private_folder, sidecar
from tests.backend.our_processes import is_alive, until
from tests.patience import PATIENCE_SECONDS
from tests.repository import ROOT

# A module that runs any statement, so that a test can say what its process does.
SETUP = ("timeit", ["-n1", "-r1", "-s"])


def program(*statements: str) -> tuple[str, list[str]]:
    module, arguments = SETUP
    return module, [*arguments, "\n".join(statements), "pass"]


FOR_EVER = program("import time", "print('up', flush=True)", "time.sleep(60)")
STUBBORN = program(
    "import signal, time",
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "print('up', flush=True)",
    "time.sleep(60)",
)


class Shown:
    """What a sidecar printed so far."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, text: str) -> None:
        self.text += text

    async def until(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while text not in self.text:  # noqa: ASYNC110  # there is no event to await
                await asyncio.sleep(0.01)


async def test_output_of_both_kinds_is_shown_as_it_comes() -> None:
    shown = Shown()
    prints = ("import sys, time", "print('日本', file=sys.stderr)", "print('out', flush=True)")
    async with sidecar(*program(*prints, "time.sleep(60)"), name="it", show=shown):
        await shown.until("日本\nout\n")


async def test_work_that_ends_first_gives_its_result() -> None:
    async def work() -> int:
        return 7

    async with sidecar(*FOR_EVER, name="it", show=Shown()) as running:
        assert await running.unless_it_dies(work()) == 7
        assert is_alive(running.pid)
    assert not is_alive(running.pid)


async def test_a_death_ends_the_work_and_tells_exit_code_and_last_lines() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    lines = [f"print('line {i}')" for i in range(20)]
    async with sidecar(
        *program(*lines, "import os", "import sys", "sys.stdout.flush()", "os._exit(3)"), name="it"
    ) as it:
        with pytest.raises(SidecarDied) as death:
            await it.unless_it_dies(work())
    assert cancelled.is_set()
    assert death.value.exit_code == 3
    assert str(death.value) == "it ended with exit code 3, its last lines:" + "".join(
        f"\n  line {i}" for i in range(12, 20)
    )


async def test_a_death_by_signal_is_named() -> None:
    async with sidecar(*program("import os", "os.kill(os.getpid(), 11)"), name="it", show=Shown()) as it:
        with pytest.raises(SidecarDied, match="it ended with signal SIGSEGV"):
            await it.unless_it_dies(asyncio.sleep(60))


@pytest.mark.parametrize("has_session", [False, True])
async def test_a_death_is_noticed_although_a_child_holds_the_output(
    tmp_path: Path, has_session: bool
) -> None:
    child = tmp_path / "child"
    statements = (
        "import os, subprocess, sys",
        f"held = subprocess.Popen(['sleep', '60'], start_new_session={has_session})",
        f"open({str(child)!r}, 'w').write(str(held.pid))",
        "print('last words', flush=True)",
        "os.kill(os.getpid(), 9)",
    )
    try:
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            sidecar(*program(*statements), name="it", show=Shown()) as it,
        ):
            with pytest.raises(
                SidecarDied, match=r"it ended with signal SIGKILL, its last lines:\n  last words"
            ):
                await it.unless_it_dies(asyncio.sleep(60))
        pid = int(child.read_text())
        until(lambda: is_alive(pid) == has_session)
    finally:
        # The number of one that has ended may be another process's.
        if has_session:
            os.kill(int(child.read_text()), signal.SIGKILL)


async def test_work_that_fails_fails_as_itself() -> None:
    async def work() -> None:
        raise KeyError("work")

    async with sidecar(*FOR_EVER, name="it", show=Shown()) as running:
        with pytest.raises(KeyError):
            await running.unless_it_dies(work())


async def test_a_sidecar_that_ignores_the_drain_is_killed() -> None:
    shown = Shown()
    async with sidecar(*STUBBORN, name="it", show=shown, stop_timeout=0.2) as running:
        await shown.until("up")
    assert not is_alive(running.pid)
    assert not running.is_running


async def test_a_stop_that_is_cancelled_kills() -> None:
    shown = Shown()
    async with sidecar(*STUBBORN, name="it", show=shown) as running:
        await shown.until("up")
        stopping = asyncio.create_task(running.stop())
        await asyncio.sleep(0.05)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert not is_alive(running.pid)


async def test_a_sidecar_has_a_session_of_its_own_and_no_input() -> None:
    shown = Shown()
    statements = ("import os, sys", "print(os.getsid(0), repr(sys.stdin.read()), flush=True)")
    async with sidecar(*program(*statements), name="it", show=shown) as running:
        await shown.until(f"{running.pid} ''")


def test_a_sidecar_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, signal\n"
        "from enginewire.backend.processes.sidecar import sidecar\n"
        "from tests.backend.processes.test_sidecar import STUBBORN, Shown\n"
        "async def main():\n"
        "    shown = Shown()\n"
        "    async with sidecar(*STUBBORN, name='it', show=shown) as running:\n"
        "        await shown.until('up')\n"
        "        print(running.pid, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    root = ROOT
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == -9
    until(lambda: not is_alive(int(done.stdout)))


def test_a_child_whose_parent_is_already_gone_does_not_start() -> None:
    argv = [
        sys.executable,
        "-m",
        "enginewire.backend.processes.parent_death",
        "1",
        *FOR_EVER[:1],
        *FOR_EVER[1],
    ]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "process 1 is gone\n"


def test_a_private_folder_is_for_its_owner_and_goes_away() -> None:
    with private_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.getuid()
        (folder / "file").touch()
    assert not folder.exists()


async def test_keys_of_servers_do_not_go_to_what_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENGINEWIRE_API_KEY", "ENGINEWIRE_BACKEND_API_KEY_FILE", "ENGINEWIRE_PORT"):
        monkeypatch.setenv(name, "canary")
    shown = Shown()
    tells = "import os; print([name for name in os.environ if os.environ[name] == 'canary'], flush=True)"
    async with sidecar(*program(tells, "import time; time.sleep(60)"), name="it", show=shown):
        await shown.until("['ENGINEWIRE_PORT']")
