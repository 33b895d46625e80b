"""Dynamo's frontend before our mocker, through `enginewire dynamo`, and before Dynamo's own mocker.

    .venv-dynamo/bin/python benchmarks/dynamo_worker.py [--requests 64] [--concurrency 32] [--tokens 128]

Both mockers take no time for a step and have the same tokenizer, so that what is measured is what stands
around them. `enginewire bench` sends the same streams of `/v1/completions` to both, which run at the same
time and are asked by turns. `frontend_us`, `worker_us` and `engine_us` are processor time per token of each
process (Dynamo's mocker is worker and engine in one). Medians of the rounds; the last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import psutil

from enginewire import v1 as pb
from enginewire.backend.frontends.dynamo.card import write_card
from enginewire.server.engines.mocker.tokenizer import EOS, VOCAB_SIZE, byte_tokenizer

START_SECONDS = 120.0
SIZES = ("--max-num-seqs", "256", "--max-num-batched-tokens", "8192")


class Side:
    """A frontend with one worker: its processes by name, and the port of its API."""

    def __init__(self, folder: Path, behind: dict[str, list[str]], stack: contextlib.ExitStack) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        frontend = ["dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port)]
        environment = {
            **os.environ,
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_SELF_HOST_METADATA": "0",
            "DYN_LOG": "error",
        }
        self.processes: dict[str, psutil.Process] = {}
        for name, module in {**behind, "frontend": frontend}.items():
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", *module], env=environment, stdout=log, stderr=log
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            self.processes[name] = psutil.Process(process.pid)

    def wait(self) -> None:
        """Until it has a model."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{self.port}/v1/models") as answer:
                if json.load(answer)["data"]:
                    return
            time.sleep(0.1)
        raise SystemExit("a frontend has no model")

    def seconds(self) -> dict[str, float]:
        """Processor time of each process so far."""
        times = {name: process.cpu_times() for name, process in self.processes.items()}
        return {name: spent.user + spent.system for name, spent in times.items()}

    def measure(self, options: argparse.Namespace) -> dict[str, float]:
        """One round."""
        load = {
            "--api": "completions",
            "--model": "mocker",
            "--num-prompts": options.requests,
            "--max-concurrency": options.concurrency,
            "--output-len": options.tokens,
            "--input-len": 16,
        }
        argv = [sys.executable, "-m", "enginewire", "bench", f"http://127.0.0.1:{self.port}", "--json"]
        before = self.seconds()
        done = subprocess.run(
            [*argv, *(str(part) for pair in load.items() for part in pair)],
            stdout=subprocess.PIPE,
        )
        found = json.loads(done.stdout)
        if done.returncode:
            raise SystemExit(f"not every request was answered: {found}")
        after = self.seconds()
        # With the request that warms up.
        tokens = (options.requests + 1) * options.tokens
        spent = {f"{name}_us": 1e6 * (after[name] - before[name]) / tokens for name in after}
        return {"tokens_per_s": found["output_throughput"], **spent}


@contextlib.contextmanager
def sides() -> Iterator[dict[str, Side]]:
    """Both of them, ready."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folders = {side: Path(name) / side for side in ("enginewire", "dynamo")}
        for folder in folders.values():
            folder.mkdir()
        config = pb.EngineConfig(vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])
        model = write_card(Path(name), config, byte_tokenizer().files)
        target = f"{folders['enginewire']}/e.sock"
        ours = {
            "engine": ["enginewire", "engine", "--engine", "mocker", *SIZES, "--uds", target],
            "worker": ["enginewire", "dynamo", "--target", f"unix:{target}"],
        }
        named = ["--model-path", str(model), "--model-name", "mocker"]
        theirs = {"worker": ["dynamo.mocker", *named, "--speedup-ratio", "0", *SIZES]}
        made = {
            side: Side(folders[side], behind, stack)
            for side, behind in (("enginewire", ours), ("dynamo", theirs))
        }
        for side in made.values():
            side.wait()
        yield made


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("requests", 64), ("concurrency", 32), ("tokens", 128), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with sides() as made:
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in made}
        for _ in range(options.rounds):
            for name, side in made.items():
                rounds[name].append(side.measure(options))
    result = {
        name: {key: median(each[key] for each in found) for key in found[0]} for name, found in rounds.items()
    }
    for name, found in result.items():
        print(f"{name:<12}" + "  ".join(f"{key} {value:9.1f}" for key, value in found.items()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
