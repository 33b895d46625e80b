"""How many tokens per second the HTTP face streams, beside Dynamo's frontend or vLLM's server on request.

    python benchmarks/peers/openai_http.py [--streams 100] [--tokens 512] [--rounds 3]
    python benchmarks/peers/openai_http.py --peer dynamo --dynamo-python VENV/bin/python
    .venv-vllm/bin/python benchmarks/peers/openai_http.py --peer vllm --tokens 128

Engine, server and client are three processes on each side: mocker and backend with the HTTP face here, a
worker in Python and the frontend there (`dynamo_peer.py` says what VENV needs). Both sides tokenize with the
same tokenizer, repeat the same tokens as fast as they are read, and send text that the client compares. The
client reads bare sockets and counts events, so that it shows the server's speed and not that of an HTTP
library. Rounds are interleaved and medians compared; the other side's processes are idle meanwhile.

With `--peer vllm` both have vLLM's EngineCore on `builtin:demo`, and it is what makes tokens slowly:
`core_us_per_token` is its processor time. Ours is two servers in front of it, vLLM's is one: compare
`server_us_per_token` and `engine_us_per_token` together.

A server that is slower than its engine may put several tokens into one event: `tokens_per_event` says so.
With --itl-ms both engines are slow, so that every event has one token: look at the processor time then, and
at `gap_p99_ms`, between two arrivals at one caller. `server_us_per_event`, `server_us_per_token` and
`engine_us_per_token` are processor time, which other programs on the machine disturb less than the clock;
what requests cost beside their tokens is in it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import IO

import psutil
import vllm_peer
from dynamo_peer import MODEL, dynamo, free_port, wait_for_model

EVENT = re.compile(rb"data: (\{.*\})")
PROMPT = "the quick brown fox jumps over the lazy dog"


@dataclass(frozen=True)
class Side:
    """A server to measure: its port, and the ids of the server and its engine, and of vLLM's EngineCore."""

    name: str
    port: int
    processes: list[int]
    core: list[int] = field(default_factory=list)

    def processor_seconds(self) -> list[float]:
        """What the server, its engine and EngineCore have used until now."""
        server, *engine = map(processor_seconds, self.processes)
        return [server, sum(engine), sum(map(processor_seconds, self.core))]


@dataclass(frozen=True)
class Answer:
    """What one stream brought."""

    text: str
    events: int
    tokens: int
    gaps: list[float]


@contextmanager
def enginewire(folder: Path, engine: str) -> Iterator[Side]:
    """An HTTP face over an engine of these options.

    The face does not launch the engine: that would put the two into sessions of their own, between which
    Linux shares its processors otherwise than among the processes of the other side.
    """
    options = shlex.split(f"{engine} --served-model-name {MODEL} --log-level error --uds {folder}/e")
    with ExitStack() as stack:
        server = stack.enter_context(running(["-m", "enginewire.server", *options]))
        face = f"-m enginewire.backend serve --target unix:{folder}/e --uds {folder}/b --http-port 0".split()
        backend = stack.enter_context(running([*face, "--connect-timeout", "600"], stderr=subprocess.PIPE))
        assert backend.stderr is not None
        for line in backend.stderr:
            if found := re.search(r"http://\S+:(\d+)", line):
                yield Side("enginewire", int(found[1]), [backend.pid, server.pid], below(server.pid))
                return
            print(line, end="", file=sys.stderr)
        raise SystemExit("the server ended")


@contextmanager
def running(arguments: list[str], **streams: int | IO[str]) -> Iterator[subprocess.Popen[str]]:
    """A Python process that ends with the context."""
    process = subprocess.Popen([sys.executable, *arguments], text=True, **streams)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def vllm(folder: Path) -> Iterator[Side]:
    """vLLM's own server."""
    port = free_port()
    with (
        (folder / "vllm.log").open("w") as log,
        running(vllm_peer.serve(port, MODEL), stdout=log, stderr=log) as server,
    ):
        if not wait_for_model(port, vllm_peer.START_SECONDS):
            raise SystemExit((folder / "vllm.log").read_text() + "vLLM's server is not there")
        yield Side("vllm", port, [server.pid], below(server.pid))


def below(process: int) -> list[int]:
    """The ids of all that it has started."""
    return [each.pid for each in psutil.Process(process).children(recursive=True)]


async def stream(port: int, tokens: int) -> tuple[bytes, list[float]]:
    """One chat completion, as it came over the socket, and the times of time.perf_counter when it came."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{head}".encode() + body)
    pieces, times = [], []
    while piece := await reader.read(1 << 20):
        pieces.append(piece)
        times.append(time.perf_counter())
    writer.close()
    return b"".join(pieces), times


def read_answer(data: bytes, times: list[float]) -> Answer:
    """Take the events apart, after the clock has stopped."""
    chunks = [json.loads(event) for event in EVENT.findall(data)]
    texts = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
    used = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")]
    gaps = [later - earlier for earlier, later in pairwise(times[:-1])]
    return Answer("".join(filter(None, texts)), sum(map(bool, texts)), sum(used), gaps)


def processor_seconds(process: int) -> float:
    """What a process has used until now."""
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


async def measure(side: Side, streams: int, tokens: int) -> tuple[dict[str, float], set[str]]:
    """One round: figures, and the texts."""
    before = side.processor_seconds()
    begin = time.perf_counter()
    received = await asyncio.gather(*(stream(side.port, tokens) for _ in range(streams)))
    seconds = time.perf_counter() - begin
    after = side.processor_seconds()
    answers = [read_answer(*each) for each in received]
    assert all(answer.tokens == tokens for answer in answers), (side.name, received[0][0][:1000])
    events = sum(answer.events for answer in answers)
    gaps = [gap * 1000 for answer in answers for gap in answer.gaps]
    server, engine, core = ((b - a) * 1e6 for a, b in zip(before, after, strict=True))
    figures = {
        "tokens_per_s": streams * tokens / seconds,
        "events_per_s": events / seconds,
        "tokens_per_event": streams * tokens / events,
        "server_us_per_event": server / events,
        "server_us_per_token": server / (streams * tokens),
        "engine_us_per_token": engine / (streams * tokens),
        "gap_p50_ms": median(gaps) if gaps else 0.0,
        "gap_p99_ms": quantiles(gaps, n=100, method="inclusive")[98] if len(gaps) > 1 else 0.0,
    }
    if side.core:
        figures["core_us_per_token"] = core / (streams * tokens)
    return figures, {answer.text for answer in answers}


async def compare(sides: list[Side], arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The medians of every side."""
    rounds: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    texts: set[str] = set()
    for side in sides:
        await measure(side, arguments.streams, 16)
    for _ in range(arguments.rounds):
        for side in sides:
            figures, said = await measure(side, arguments.streams, arguments.tokens)
            rounds[side.name].append(figures)
            texts |= said
    assert len(texts) == 1, "the sides said different things"
    return {
        name: {key: round(median(each[key] for each in measured), 2) for key in measured[0]}
        for name, measured in rounds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", choices=["dynamo", "vllm", "none"], default="none")
    parser.add_argument("--dynamo-python", help="the Python of an environment that has Dynamo")
    parser.add_argument("--dynamo-tokens-per-message", type=int, default=1, help="what its engine gathers")
    parser.add_argument("--itl-ms", type=float, default=0.0, help="of the engines; 0 is as fast as they can")
    parser.add_argument("--json", action="store_true", help="print nothing but the line of JSON")
    arguments = parser.parse_args()
    if arguments.peer == "dynamo" and not arguments.dynamo_python:
        parser.error("--peer dynamo needs --dynamo-python")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ew-")))
        engine = f"--engine mocker --mocker-itl-ms {arguments.itl_ms} --max-num-seqs 1024"
        if arguments.peer == "vllm":
            os.environ |= vllm_peer.ENVIRONMENT
            engine = shlex.join(vllm_peer.ENGINE)
        sides = [stack.enter_context(enginewire(folder, engine))]
        if arguments.peer == "vllm":
            sides.append(stack.enter_context(vllm(folder)))
        if arguments.peer == "dynamo":
            per_message = arguments.dynamo_tokens_per_message
            peer = dynamo(arguments.dynamo_python, folder, arguments.itl_ms, per_message)
            sides.append(Side("dynamo", *stack.enter_context(peer)))
        medians = asyncio.run(compare(sides, arguments))
    report(medians, arguments)


def report(medians: dict[str, dict[str, float]], arguments: argparse.Namespace) -> None:
    """A table, unless it is not wanted, and the JSON."""
    ours = medians["enginewire"]
    for key in () if arguments.json else ours:
        print(*(f"{figures[key]:12,.1f}" for figures in medians.values()), f"  {key}")
    summary: dict[str, object] = {"streams": arguments.streams, "tokens": arguments.tokens, **ours}
    if peer := medians.get(arguments.peer):
        summary[arguments.peer] = peer
        for what, key in (("", "tokens"), ("_events", "events")):
            ratio = ours[f"{key}_per_s"] / peer[f"{key}_per_s"]
            summary[f"ratio{what}_to_{arguments.peer}"] = round(ratio, 2)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
