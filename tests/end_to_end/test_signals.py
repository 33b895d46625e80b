"""How an engine server ends: idle, busy, out of patience, twice asked, half started."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2

from enginewire import v1 as pb
from tests.certificates import Authority
from tests.end_to_end.processes import start_client_process
from tests.long import long
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import ask, detail_of, until_true

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# Far more than a test waits for the end of a process: whoever needs it all has not ended at once.
LONG_LIMIT = ("--shutdown-timeout", "600")
STARTS_NEVER = "tests.end_to_end.slow_engine:StartsNever"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_server_ends_at_once_with_0_and_watchers_see_it(launch, connect, folder, number):
    server = launch(*LONG_LIMIT)
    history: list[int] = []
    watching = asyncio.create_task(connect(server.target()).watch_health(history))
    await until_true(lambda: history == [SERVING])
    server.signal(number)
    await watching
    assert history == [SERVING, NOT_SERVING]
    assert await asyncio.to_thread(server.exit_code) == 0
    assert [path.name for path in folder.iterdir() if path.suffix == ".sock"] == []


async def test_streams_finish_while_new_requests_are_told_that_it_drains(launch, connect):
    server = launch("--mocker-itl-ms", "10", "--max-num-seqs", "8", *LONG_LIMIT)
    client = connect(server.target())
    running = [asyncio.create_task(client.finish_of(f"r{i}", 60)) for i in range(8)]
    await client.until_running(8)
    server.signal(signal.SIGTERM)
    await client.until_draining()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.engine.Generate(ask("late")).read()
    assert detail_of(caught.value).reason == pb.ERROR_REASON_DRAINING
    assert await asyncio.gather(*running) == [(pb.FINISH_REASON_LENGTH, 60)] * 8
    # Right after the last stream, not at the end of the limit.
    assert await asyncio.to_thread(server.exit_code) == 0


async def test_at_the_limit_streams_get_their_terminal_and_it_ends_with_0(launch, connect):
    server = launch("--mocker-itl-ms", "20", "--shutdown-timeout", "0.3")
    client = connect(server.target())
    running = [asyncio.create_task(client.finish_of(f"r{i}", 4000)) for i in range(3)]
    await client.until_running(3)
    begin = time.monotonic()
    server.signal(signal.SIGTERM)
    ends = await asyncio.gather(*running)
    assert {reason for reason, _ in ends} == {pb.FINISH_REASON_CANCELLED}
    assert await asyncio.to_thread(server.exit_code) == 0
    assert time.monotonic() - begin >= 0.3


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_now_with_terminals_and_its_number(launch, connect, second):
    server = launch("--mocker-itl-ms", "20")
    client = connect(server.target())
    running = asyncio.create_task(client.finish_of("r", 4000))
    await client.until_running(1)
    server.signal(signal.SIGTERM)
    await asyncio.to_thread(server.wait_for, "draining")
    server.signal(second)
    assert (await running)[0] == pb.FINISH_REASON_CANCELLED
    assert await asyncio.to_thread(server.exit_code) == 128 + second


@pytest.mark.parametrize("kind", ["StartsNever", "BlocksAThread"])
def test_a_signal_during_the_start_ends_it_within_seconds(launch, folder, kind):
    server = launch(engine=f"tests.end_to_end.slow_engine:{kind}")
    server.wait_for("listening on")
    time.sleep(0.2)
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert not (folder / "engine.sock").exists()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_clean_up_that_does_not_end(launch, second):
    server = launch(engine="tests.end_to_end.slow_engine:NeverCleansUp")
    server.wait_for("listening on")
    server.signal(signal.SIGTERM)
    time.sleep(1)
    server.signal(second)
    # Behind the clean-up the signal's own action is the same to a shell.
    assert server.exit_code() in (128 + second, -second)


async def test_until_the_engine_has_started_requests_are_told_so(launch, connect):
    server = launch(engine=STARTS_NEVER)
    client = connect(server.wait_for("listening on").removeprefix("listening on "))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.engine.Generate(ask()).read()
    assert detail_of(caught.value).reason == pb.ERROR_REASON_NOT_STARTED
    assert (await client.load()).state == pb.ENGINE_STATE_STARTING


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_start_that_goes_on_regardless(launch, number):
    server = launch(engine="tests.end_to_end.slow_engine:GoesOnStarting")
    server.wait_for("listening on")
    server.signal(signal.SIGTERM)
    # Sooner it would be the same wish.
    time.sleep(0.8)
    server.signal(number)
    assert server.exit_code() == 128 + number
    assert "Traceback" not in server.log_path.read_text()


def test_an_engine_that_cannot_start_ends_it_with_1_and_one_line(launch, folder):
    server = launch(engine="tests.end_to_end.slow_engine:FailsToStart")
    assert server.exit_code() == 1
    assert [event for event in server.events() if "weights" in event] == [
        "the engine failed to start: no weights there"
    ]
    assert "Traceback" not in server.log_path.read_text()
    assert not (folder / "engine.sock").exists()


async def test_a_stuck_engine_ends_it_with_70_and_its_stacks_in_the_log(launch, connect):
    server = launch("--mocker-fault", "stall:3", "--mocker-itl-ms", "10", "--watchdog-timeout", "0.2")
    call = connect(server.target()).engine.Generate(ask())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert detail_of(caught.value).reason == pb.ERROR_REASON_STUCK
    assert await asyncio.to_thread(server.exit_code) == 70
    assert "most recent call first" in server.log_path.read_text()


async def test_a_killed_client_frees_everything_it_held(launch, connect):
    server = launch("--mocker-itl-ms", "10")
    target = server.target()
    client = connect(target)
    with await asyncio.to_thread(start_client_process, target, 4) as other:
        assert await asyncio.to_thread(other.stdout.readline) == "running\n"
        await client.until_running(8)
        os.kill(other.pid, signal.SIGKILL)
        await client.until_running(0)


HIT_WHEN_IT_READS_A_NEW_KEY = """
import os, signal, sys
from enginewire.tls import certificate
from {program} import main

read_pem, keys = certificate.read_pem, set()

def reads_and_is_hit(option, path, kind):
    content = read_pem(option, path, kind)
    if kind == "PRIVATE KEY" and content not in keys:
        keys.add(content)
        if len(keys) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
    return content

certificate.read_pem = reads_and_is_hit
sys.exit(main(sys.argv[1:]))
"""


async def test_a_signal_in_the_middle_of_new_certificates_costs_no_answer(
    launch, connect, folder: Path
) -> None:
    authority = Authority(folder)
    mine, new = authority.signed("mine"), authority.signed("new")
    shown = ("--ssl-certfile", str(mine.certificate), "--ssl-keyfile", str(mine.key))
    script = HIT_WHEN_IT_READS_A_NEW_KEY.format(program="enginewire.server.__main__")
    server = launch("--port", "0", "--mocker-itl-ms", "10", *shown, program=("-c", script))
    trusting = grpc.ssl_channel_credentials(authority.file.read_bytes())
    client = connect(server.target(), trusting)
    answer = asyncio.create_task(client.finish_of("r", 60))
    await client.until_running(1)
    mine.replace_by(new)
    # Whose handshake it is gets in, with the one pair or the other.
    await connect(server.target(), trusting).load()
    assert await answer == (pb.FINISH_REASON_LENGTH, 60)
    assert await asyncio.to_thread(server.exit_code) == 0
    assert "draining" in server.events()


@long
async def test_a_signal_in_the_middle_of_new_certificates_costs_no_answer_over_http(
    launch, folder: Path
) -> None:
    authority = Authority(folder)
    mine, new = authority.signed("mine"), authority.signed("new")
    serve = ["serve", "--target", launch("--mocker-itl-ms", "10").target(), "--uds", f"{folder}/b"]
    shown = ["--http-port", "0", f"--ssl-certfile={mine.certificate}", f"--ssl-keyfile={mine.key}"]
    script = HIT_WHEN_IT_READS_A_NEW_KEY.format(program="enginewire.backend.__main__")
    backend = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *serve, *shown, stderr=asyncio.subprocess.PIPE
    )
    assert backend.stderr is not None
    while not (found := re.search(r"https://\S+", line := (await backend.stderr.readline()).decode())):
        assert line, "it has ended"
    trusting = ssl.create_default_context(cafile=authority.file)
    # Two seconds: far longer than the half second that a drain without patience leaves to an answer.
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
    async with (
        httpx2.AsyncClient(base_url=found[0], verify=trusting) as first,
        first.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        mine.replace_by(new)
        async with httpx2.AsyncClient(base_url=found[0], verify=trusting) as second:
            assert (await second.get("/version")).status_code == 200
        *_, last, done = [line async for line in lines if line]
        assert done == "data: [DONE]"
        # An answer that was cut ends with [DONE] as well, behind its error.
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert await backend.wait() == 0


HIT_WHEN_IT_LISTENS = """
import os, signal, sys
from enginewire.server.__main__ import main
from enginewire.server.server import EngineServer

listen = EngineServer.listen

async def listens_and_is_hit(self):
    await listen(self)
    os.kill(os.getpid(), signal.SIGTERM)

EngineServer.listen = listens_and_is_hit
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_the_moment_it_listens_leaves_no_socket(folder: Path) -> None:
    at = folder / "e.sock"
    command = [sys.executable, "-c", HIT_WHEN_IT_LISTENS, "--engine", "mocker", "--uds", str(at)]
    assert subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS).returncode == 0
    assert not at.exists()
