"""How many tokens per second the HTTP face streams.

    python benchmarks/openai_http.py [--streams 100] [--tokens 512] [--json]

Engine server (mocker, as fast as it can), backend with the HTTP face, and the client are three
processes. The client reads bare sockets and counts events, so that it shows the server's speed and not
that of an HTTP library. A server that is slower than the engine puts several tokens into one event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROUNDS = 3
USED = re.compile(rb'"completion_tokens":(\d+)')


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """The port of an HTTP face over a mocker."""
    command = f"-m backend_client serve --uds {folder}/b --http-port 0 --launch".split()
    engine = "--engine mocker --max-num-seqs 1024 --log-level error"
    process = subprocess.Popen([sys.executable, *command, engine], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"http://\S+:(\d+)", line):
                yield int(found[1])
                return
            print(line, end="", file=sys.stderr)
        raise SystemExit("the server ended")
    finally:
        process.terminate()
        process.wait()


async def stream(port: int, tokens: int) -> tuple[int, int]:
    """One chat completion; its events with text, and its tokens."""
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "the quick brown fox jumps over the lazy dog"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{head}".encode() + body)
    data = await reader.read()
    writer.close()
    return data.count(b'"content":'), sum(map(int, USED.findall(data)))


async def measure(port: int, streams: int, tokens: int) -> dict[str, float]:
    """The best of several rounds."""
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        answers = await asyncio.gather(*(stream(port, tokens) for _ in range(streams)))
        seconds = time.perf_counter() - begin
        assert all(used == tokens for _, used in answers), answers[:3]
        events = sum(number for number, _ in answers)
        if streams * tokens / seconds > best.get("tokens_per_s", 0):
            best = {
                "tokens_per_s": round(streams * tokens / seconds),
                "events_per_s": round(events / seconds),
                "tokens_per_event": round(streams * tokens / events, 1),
            }
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each stream")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ew-") as folder, serving(Path(folder)) as port:
        results = asyncio.run(measure(port, arguments.streams, arguments.tokens))
    if arguments.json:
        print(json.dumps({"streams": arguments.streams, "tokens": arguments.tokens, **results}))
    else:
        for name, value in results.items():
            print(f"{value:12,}  {name}")


if __name__ == "__main__":
    main()
