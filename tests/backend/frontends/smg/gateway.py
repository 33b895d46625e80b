"""The real gateway, a real worker behind it, and the OpenAI SDK in front: four processes with ours."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2

from tests.backend.our_processes import command, running
from tests.patience import PATIENCE_SECONDS


@contextlib.contextmanager
def worker(folder: Path, engine: str) -> Iterator[str]:
    """`enginewire-backend serve` with an engine of its own; yields its grpc:// URL."""
    arguments = ["--uds", f"{folder}/backend.sock", "--smg-port", "0", "--launch", engine]
    with running(command("serve", *arguments), stderr=subprocess.PIPE) as process:
        lines = []
        for line in process.stderr:
            lines.append(line.decode())
            if found := re.search(r"grpc://\S+", lines[-1]):
                # Whatever else it says must not fill the pipe.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield found[0]
                return
        raise AssertionError("".join(lines))


@contextlib.contextmanager
def gateway(folder: Path, worker_url: str) -> Iterator[str]:
    """`smg launch`; yields the base URL of its OpenAI API once it serves the worker's model."""
    port, metrics_port = free_ports(2)
    program = shutil.which("smg", path=sysconfig.get_path("scripts"))
    assert program is not None, "the package smg is not installed"
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", worker_url]
    arguments += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    log = folder / "smg.log"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, program, "launch", *arguments], stdout=out, stderr=out)
    try:
        url = f"http://127.0.0.1:{port}/v1"
        until_it_has_a_model(url, process, log)
        yield url
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    """It lists its model a little before it has the tokenizer."""
    models = httpx2.get(f"{url}/models")
    if models.status_code != 200:
        return False
    question = {"role": "user", "content": "Hello"}
    asked = {"model": models.json()["data"][0]["id"], "messages": [question], "max_tokens": 1}
    return httpx2.post(f"{url}/chat/completions", json=asked, timeout=PATIENCE_SECONDS).status_code != 503


def until_it_has_a_model(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx2.TransportError):
            if answers(url):
                return
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace")[-8000:])


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    with contextlib.ExitStack() as sockets:
        taken = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in taken]
