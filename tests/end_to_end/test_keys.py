"""API keys between real processes: they come by the environment, reach who they are for, and nobody else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest

from enginewire.access.roles import Role
from tests.backend.our_processes import command, running
from tests.keys import ALL_KEYS, KEYS, UNKNOWN_KEY
from tests.patience import PATIENCE_SECONDS

INFER = KEYS[Role.INFER]


@dataclass(frozen=True, slots=True)
class Stack:
    """A backend that asks for keys, and the engine that it has launched."""

    process: psutil.Process
    grpc: str
    http: str
    said: list[str]


@pytest.fixture
def stack(socket_folder: Path) -> Iterator[Stack]:
    faces = ["--http-port", "0", "--uds", f"{socket_folder}/backend.sock"]
    environment = {
        **os.environ,
        "ENGINEWIRE_BACKEND_API_KEY": ",".join(ALL_KEYS),
        # For engines that are reached from elsewhere: the one that is launched here is not.
        "ENGINEWIRE_API_KEY": UNKNOWN_KEY,
    }
    argv = command("serve", "--launch", "--engine mocker --log-level debug", "--log-level", "debug", *faces)
    with running(argv, stderr=subprocess.PIPE, env=environment) as process:
        said, found = [], []
        for line in process.stderr:
            said.append(line.decode())
            found += re.findall(r"^listening on (unix\S+|http\S+)", said[-1])
            if len(found) == 2:
                break
        rest = threading.Thread(target=lambda: said.extend(map(bytes.decode, process.stderr)), daemon=True)
        rest.start()
        try:
            yield Stack(psutil.Process(process.pid), *found, said)
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
            rest.join(PATIENCE_SECONDS)


def measured(stack: Stack, api: str, key: str) -> subprocess.CompletedProcess[str]:
    """`enginewire bench` on a face."""
    target = stack.http if api == "completions" else stack.grpc
    argv = [sys.executable, "-m", "enginewire", "bench", target, "--api", api, "--model", "mocker", "--json"]
    return subprocess.run(
        [*argv, "--num-prompts", "2", "--num-warmups", "0", "--input-len", "4", "--output-len", "4"],
        env={**os.environ, "ENGINEWIRE_BENCH_TARGET_API_KEY": key},
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
    )


def test_keys_reach_whom_they_are_for_and_nobody_sees_them(stack: Stack) -> None:
    seen = []
    for api in ("completions", "backend"):
        done = measured(stack, api, INFER)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["completed"] == 2
        refused = measured(stack, api, UNKNOWN_KEY)
        assert refused.returncode != 0
        seen += [done.stdout, done.stderr, refused.stdout, refused.stderr]
    with pytest.raises(HTTPError, match="401"):
        urllib.request.urlopen(f"{stack.http}/v1/models", timeout=PATIENCE_SECONDS)
    family = [stack.process, *stack.process.children(recursive=True)]
    assert len(family) >= 2
    seen += [word for each in family for word in each.cmdline()]
    engine = next(each for each in family if "enginewire.server" in each.cmdline())
    seen += engine.environ().values()
    assert "canary" not in "".join([*seen, *stack.said])
