"""The program ends early: it is told to, or its server is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.__main__ import main
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.interruption import Interrupted, Interruption, Life
from enginewire.conformance.running.outcome import CutShort, ExitCode, Report, Status
from enginewire.conformance.running.runner import Runner
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.running.servers.processes import alive
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.session import Session, Unreachable
from enginewire.conformance.wire import presence
from enginewire.conformance.wire.connection import Connection
from tests.conformance.judging import made_up, statuses
from tests.conformance.running.mortal import EXIT_CODE
from tests.patience import PATIENCE_SECONDS
from tests.repository import ROOT

KIT = [sys.executable, "-m", "enginewire.conformance"]
SERVER = f"{shlex.quote(sys.executable)} -m enginewire.conformance.reference unix:{{socket}}"
TELLS_ITS_GROUP = f"sh -c 'echo $$ > {{folder}}/group; exec {SERVER}'"
WHY = CutShort("interrupted", ExitCode.INTERRUPTED, "by SIGINT")


def started(folder: Path, disposition: Callable[..., object] | int, *options: str) -> subprocess.Popen[str]:
    """The kit as a shell would start it, with SIGINT as whoever started the shell left it."""
    command = TELLS_ITS_GROUP.replace("{folder}", str(folder))
    return subprocess.Popen(
        [*KIT, "--launch", command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, disposition),  # type: ignore[arg-type]  # a handler
    )


def wait_for(path: Path) -> int:
    """The number in a file, as soon as it is there."""
    for _ in range(PATIENCE_SECONDS * 20):
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text())
        _sleep()
    raise AssertionError(f"{path.name} never came")


def _sleep() -> None:
    asyncio.run(asyncio.sleep(0.05))


@pytest.mark.parametrize("disposition", [signal.default_int_handler, signal.SIG_IGN])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
def test_a_signal_ends_the_server_and_writes_what_is_known(
    tmp_path: Path, disposition: Callable[..., object] | int, number: signal.Signals, code: ExitCode
) -> None:
    files = {name: tmp_path / name for name in ("json", "junit", "tap", "html", "markdown", "badge")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    # Hundreds of runs: it cannot be over before it is told to end.
    kit = started(tmp_path, disposition, "--run", "LIM-0*", "--repeat", "999", *options)
    group = wait_for(tmp_path / "group")
    kit.send_signal(number)
    _, err = kit.communicate(timeout=PATIENCE_SECONDS)
    assert (kit.returncode, "Traceback" in err) == (code, False), err
    assert json.loads(files["json"].read_text())["exit_code"] == code
    assert all(
        f"interrupted by {number.name}" in files[name].read_text() for name in files if name != "badge"
    )
    assert alive([], group) == set()


async def test_what_is_asked_to_end_is_cancelled_and_over() -> None:
    over, interruption = [], Interruption()
    interruption.at_once.append(lambda: over.append("at once"))

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            over.append("work")

    waiting = asyncio.ensure_future(interruption.unless_asked(work()))
    await asyncio.sleep(0)
    interruption.end(WHY)
    with pytest.raises(Interrupted, match="interrupted by SIGINT"):
        await waiting
    assert over == ["at once", "work"]


async def test_what_is_done_before_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert await Interruption().unless_asked(work()) == 7


async def test_a_second_signal_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    interruption = Interruption()
    with interruption.listening():
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert (interruption.why, codes) == (CutShort("interrupted", ExitCode.TERMINATED, "by SIGTERM"), [])
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.05)
    assert codes == [ExitCode.INTERRUPTED]


async def test_a_report_has_what_was_judged_before() -> None:
    interruption = Interruption()

    async def passes(ctx: Context) -> None:
        await ctx.client.info()

    async def is_interrupted(ctx: Context) -> None:
        interruption.end(WHY)
        await asyncio.Event().wait()

    report = await _judged(
        made_up("STR-01", passes), made_up("STR-02", is_interrupted, needs=("STR-01",)), interruption
    )
    assert statuses(report)["STR-01"] is Status.PASS
    (second,) = [outcome for outcome in report.outcomes if outcome.key == "STR-02"]
    assert (second.status, second.message) == (Status.NOT_RUN, "interrupted")
    assert report.exit_code() is ExitCode.INTERRUPTED


async def _judged(first: object, second: object, interruption: Interruption) -> Report:
    server = await InProcess(Reference()).start()
    session = Session(connection=Connection(target=server.target))
    checks = [first, second]
    report = await Runner(session, checks, Selection(), interruption=interruption).run()  # type: ignore[arg-type]  # checks
    await server.stop()
    return report


@pytest.mark.parametrize(("how", "said"), [("exit", f"exit code {EXIT_CODE}"), ("signal", "signal SIGKILL")])
def test_a_server_that_dies_ends_the_run_in_a_few_lines(
    how: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command = f"{shlex.quote(sys.executable)} -m tests.conformance.running.mortal {how} unix:{{socket}}"
    code = main(["--launch", command, "--run", "LIM-*,ABO-*", "--one-by-one"])
    lines = capsys.readouterr().out.splitlines()
    assert code == ExitCode.UNREACHABLE
    died = f"the server died while LIM-01 ran: {said}; last lines of its output: out of memory: no verdict"
    assert lines[-1] == died
    assert [line for line in lines if line.startswith(("FAIL", "BLOCKED"))] == []
    assert len([line for line in lines if line.endswith(": the server died")]) == 1


async def test_a_target_that_stays_away_ends_the_run() -> None:
    server = await InProcess(Reference()).start()
    session = Session(connection=Connection(target=server.target))

    async def ends_it(ctx: Context) -> None:
        await ctx.client.info()
        await server.stop()
        await ctx.client.info()

    async def never(ctx: Context) -> None:
        raise AssertionError("it ran")

    checks = [made_up("STR-01", ends_it), made_up("STR-02", never, needs=("STR-01",))]
    life = Life(session.connection, patience=0.2)
    report = await Runner(session, checks, Selection(), life=life).run()
    assert report.exit_code() is ExitCode.UNREACHABLE
    assert str(report.cut_short).startswith("the server died while STR-01 ran: nothing has listened")
    assert {statuses(report)[key] for key in ("STR-01", "STR-02")} == {Status.NOT_RUN}


class Proxied(Reference):
    """What a proxy in front of a server looks like, which stays when the server is gone."""

    is_gone = False

    def parsed(self, request_class: type[Message], payload: bytes) -> object:
        if self.is_gone:
            raise Refusal(pb.ERROR_REASON_DRAINING, "no healthy upstream")
        return super().parsed(request_class, payload)


async def test_a_proxy_with_nobody_behind_it_is_no_server() -> None:
    proxy = Proxied()
    server = await InProcess(proxy).start()
    session = Session(connection=Connection(target=server.target))

    async def ends_it(ctx: Context) -> None:
        proxy.is_gone = True
        await ctx.client.info()

    life = Life(session.connection, patience=0.2)
    report = await Runner(session, [made_up("STR-01", ends_it)], Selection(), life=life).run()
    assert report.exit_code() is ExitCode.UNREACHABLE
    assert str(report.cut_short).startswith("the server died while STR-01 ran: what listens")
    assert "no healthy upstream" in str(report.cut_short)
    await server.stop()


async def test_a_proxy_with_nobody_behind_it_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "PATIENCE_SECONDS", 0.2)
    proxy = Proxied()
    proxy.is_gone = True
    server = await InProcess(proxy).start()
    with pytest.raises(Unreachable, match=r"answered UNAVAILABLE for 0 s: no healthy upstream .*NOT_STARTED"):
        await Session(connection=Connection(target=server.target)).open()
    await server.stop()


async def test_a_target_that_comes_back_is_judged_on() -> None:
    server = await InProcess(Reference()).start()
    life = Life(Connection(target=server.target), patience=0.2)
    report = await _judged_with(life)
    assert (report.cut_short, statuses(report)["STR-01"]) == (None, Status.FAIL)
    await server.stop()


async def _judged_with(life: Life) -> Report:
    """A check that loses a connection of its own, to a server that is not the target."""

    async def loses_another(ctx: Context) -> None:
        await ctx.connect(replace(life.connection, target="unix:/nowhere.sock")).info()

    checks = [made_up("STR-01", loses_another)]
    return await Runner(Session(connection=life.connection), checks, Selection(), life=life).run()
