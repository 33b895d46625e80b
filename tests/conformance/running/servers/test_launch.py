from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.conformance.__main__ import main
from enginewire.conformance.reference.__main__ import serve
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.outcome import ExitCode, Status
from enginewire.conformance.running.registry import Phase
from enginewire.conformance.running.runner import Runner
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.servers import launch
from enginewire.conformance.running.servers.in_process import InProcess, InProcessLauncher
from enginewire.conformance.running.servers.launch import CommandLauncher
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.session import Session, Unreachable
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.violation import Violation
from tests.conformance.judging import made_up, statuses
from tests.long import long

CERTIFICATE = Path(__file__).with_name("certificate")
"""Of 127.0.0.1, signed by itself; nothing but this test trusts it."""

COMMAND = f"{sys.executable} -m enginewire.conformance.reference unix:{{socket}}"

MANY = 64
"""Output tokens that nobody sends before the event loop has gone round a few times."""


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    server = await InProcess(Reference()).start()
    launcher = InProcessLauncher(Reference, COMMAND)
    declared = frozenset({"launch"})
    yield Session(connection=Connection(target=server.target), launcher=launcher, declared=declared)
    await launcher.close()
    await server.stop()


async def test_each_destructive_check_gets_a_fresh_server(session: Session) -> None:
    lives = []

    async def drains(ctx: Context) -> None:
        lives.append(ctx.info.engine_lifetime_id)
        await ctx.client.ask("EngineService.Drain", pb.DrainRequest())
        assert (await ctx.client.load()).state == pb.ENGINE_STATE_DRAINING

    checks = [made_up(key, drains, phase=Phase.DESTRUCTIVE) for key in ("DRN-01", "DRN-02")]
    report = await Runner(session, checks, Selection(phases=frozenset(Phase))).run()
    assert {statuses(report)[key] for key in ("DRN-01", "DRN-02")} == {Status.PASS}
    assert len({*lives, session.info.engine_lifetime_id}) == 3


@pytest.mark.parametrize("at_a_time", [1, 4])
async def test_so_many_have_a_server_of_their_own_at_a_time(session: Session, at_a_time: int) -> None:
    _allow(session, at_a_time)
    assert await _most_at_a_time(session) == at_a_time


@pytest.mark.parametrize(("quick_start_seconds", "at_a_time"), [(60.0, 4), (0.0, 1)])
async def test_of_programs_that_take_long_to_start_there_is_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, quick_start_seconds: float, at_a_time: int
) -> None:
    monkeypatch.setattr(launch, "QUICK_START_SECONDS", quick_start_seconds)
    launcher = CommandLauncher(COMMAND)
    await launcher.launch()
    await launcher.close()
    assert launcher.at_a_time == at_a_time


def _allow(session: Session, at_a_time: int) -> None:
    assert isinstance(session.launcher, InProcessLauncher)
    session.launcher.at_a_time = at_a_time


async def _most_at_a_time(session: Session) -> int:
    alive, most = 0, 0

    async def lives_a_while(ctx: Context) -> None:
        nonlocal alive, most
        alive, most = alive + 1, max(most, alive + 1)
        await asyncio.sleep(0.2)
        alive -= 1

    checks = [made_up(f"DRN-0{number}", lives_a_while, phase=Phase.DESTRUCTIVE) for number in range(1, 7)]
    seen = statuses(await Runner(session, checks, Selection(phases=frozenset(Phase))).run())
    assert {seen[check.key] for check in checks} == {Status.PASS}
    return most


@pytest.mark.parametrize("judges_again", [True, False])
async def test_what_fails_beside_other_fresh_servers_is_judged_again(
    session: Session, judges_again: bool
) -> None:
    beside = set[str]()
    _allow(session, 4)

    async def has_to_be_alone(ctx: Context) -> None:
        beside.add(ctx.info.engine_lifetime_id)
        await asyncio.sleep(0.5)
        others = len(beside) - 1
        beside.discard(ctx.info.engine_lifetime_id)
        if others:
            raise Violation("too slow")

    async def fails(ctx: Context) -> None:
        raise Violation("is wrong")

    checks = [made_up(key, has_to_be_alone, phase=Phase.DESTRUCTIVE) for key in ("DRN-01", "DRN-02")]
    checks.append(made_up("DRN-03", fails, phase=Phase.DESTRUCTIVE))
    selection = Selection(phases=frozenset(Phase), judges_again=judges_again)
    seen = statuses(await Runner(session, checks, selection).run())
    assert (Status.FAIL in (seen["DRN-01"], seen["DRN-02"])) is not judges_again
    assert seen["DRN-03"] is Status.FAIL


async def test_a_check_starts_and_signals_a_program_of_which_nothing_is_left(session: Session) -> None:
    left = []

    async def ends_one_and_leaves_one(ctx: Context) -> None:
        program = await ctx.spawn()
        await program.ready(ctx.bounds.check)
        program.signal(signal.SIGTERM)
        assert await program.ended(ctx.bounds.check) == 0
        left.append(await ctx.spawn())

    checks = [made_up("LIF-02", ends_one_and_leaves_one, phase=Phase.LAUNCH)]
    report = await Runner(session, checks, Selection(phases=frozenset(Phase))).run()
    assert statuses(report)["LIF-02"] is Status.PASS, report.unexpected
    await asyncio.sleep(0)
    assert left[0].exit_code is not None


async def test_a_fresh_server_that_never_serves_fails_its_check_and_no_other(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_serves() -> InProcess:
        raise Unreachable("the server was not ready within 1 s")

    async def passes(ctx: Context) -> None:
        await ctx.client.info()

    monkeypatch.setattr(session.launcher, "launch", never_serves)
    checks = [made_up("DRN-01", passes, phase=Phase.DESTRUCTIVE), made_up("STR-01", passes)]
    report = await Runner(session, checks, Selection(phases=frozenset(Phase))).run()
    seen = {outcome.key: (outcome.status, outcome.message) for outcome in report.outcomes}
    assert seen["DRN-01"] == (Status.FAIL, "the server was not ready within 1 s")
    assert seen["STR-01"] == (Status.PASS, "")


async def test_programs_started_at_once_have_addresses_of_their_own() -> None:
    launcher = InProcessLauncher(Reference, f"{sys.executable} -c pass {{socket}}")
    programs = await asyncio.gather(*(launcher.spawn() for _ in range(3)))
    await launcher.close()
    assert len({program.target for program in programs}) == 3


class SlowToSend(Reference):
    """Sends nothing until it is told to stop, when everything is generated."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted, self._stops = asyncio.Event(), asyncio.Event()

    async def serve(self, target: str) -> grpc.aio.Server:
        listening = await super().serve(target)
        stop = listening.stop

        async def told(grace: float | None) -> None:
            self._stops.set()
            await stop(grace)

        listening.stop = told  # type: ignore[method-assign]  # only to hear of it
        return listening

    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        self.accepted.set()
        await self._stops.wait()
        async for response in super().responses(job):
            yield response


async def test_a_reference_that_was_signalled_sends_what_it_generated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("enginewire.conformance.reference.server.STOP_SECONDS", 0.0)
    server, target = SlowToSend(), f"unix:{tmp_path / 'server.sock'}"
    serving = asyncio.ensure_future(serve(server, target))
    session = Session(connection=Connection(target=target))
    await session.channel.channel_ready()
    ctx = Context(session, "LIF-02")
    reading = asyncio.ensure_future(ctx.start(ctx.request(max_tokens=MANY)).end())
    await server.accepted.wait()
    server.signalled()
    assert (await serving, len((await reading).tokens)) == (0, MANY)
    await ctx.close()
    await session.close()


@long
def test_a_server_that_speaks_tls_is_launched_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    serve = f"{sys.executable} -m enginewire.conformance.reference 127.0.0.1:{{port}}"
    command = f"{serve} --tls-cert {CERTIFICATE}/server.pem --tls-key {CERTIFICATE}/server.key"
    asked = ["--launch", command, "--tls-ca", f"{CERTIFICATE}/server.pem", "--run", "STR-01,DRN-04"]
    assert main([*asked, "--ready-timeout", "30"]) == 0, capsys.readouterr()
    assert "2 PASS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        ("nobody-has-this", ExitCode.UNREACHABLE, "nobody-has-this cannot be started: No such file"),
        (str(CERTIFICATE), ExitCode.UNREACHABLE, f"{CERTIFICATE} cannot be started: Permission denied"),
        ("'open", ExitCode.USAGE, "the command cannot be read: No closing quotation"),
    ],
)
@pytest.mark.parametrize("asked", [["--launch"], ["client", "--command"]], ids=["engine", "backend"])
def test_a_command_that_cannot_be_started_is_a_sentence(
    asked: list[str], program: str, code: ExitCode, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*asked, f"{program} --listen {{socket}} {{target}}"]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"enginewire-conformance: {says}")
