"""What real servers have answered, and a server that answers so again.

    python -m tests.openai_engine.recording URL NAME

writes `recorded/NAME.json` anew, from a server that serves `builtin:demo`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.openai_engine.connection import Connection, Json
from enginewire.openai_engine.engine import Completions
from enginewire.openai_engine.options import OpenAIEngineOptions
from enginewire.server.demo_model import PATH
from enginewire.server.engines.interface import GenerateContext

FOLDER = Path(__file__).parent / "recorded"
LEFT_OUT = ("seed", "cache_salt")
"""Of a body: drawn for requests that have none, and without effect on what is recorded here."""


def question(text: str, **sampling: Any) -> pb.PreprocessedRequest:
    """A greedy request for 12 tokens, unless it says otherwise."""
    tokenizer = Tokenizer.from_file(str(PATH / "tokenizer.json"))
    ids = tokenizer.encode(f"<|bos|><|user|>{text}<|assistant|>", add_special_tokens=False).ids
    made = pb.PreprocessedRequest(token_ids=ids)
    made.stop_conditions.max_tokens = 12
    made.sampling_options.CopyFrom(pb.SamplingOptions(**{"temperature": 0.0} | sampling))
    return made


def emoji(**fields: Any) -> pb.PreprocessedRequest:
    """Its first character takes three tokens."""
    made = question("Show me an emoji")
    made.output_options.CopyFrom(pb.OutputOptions(**fields))
    return made


def to_its_end() -> pb.PreprocessedRequest:
    """An answer that ends by itself, within the second pass."""
    made = question("Show me an emoji")
    made.stop_conditions.max_tokens = 60
    return made


def past_its_end() -> pb.PreprocessedRequest:
    """The same answer, whose end counts for nothing."""
    made = to_its_end()
    made.stop_conditions.ignore_eos = True
    made.stop_conditions.max_tokens = 20
    return made


SCENARIOS = {
    "plain": question("What does Drain do?"),
    "emoji": emoji(),
    "logprobs": emoji(logprobs=2),
    "within": question("Say it with emoji"),
    "to_its_end": to_its_end(),
    "past_its_end": past_its_end(),
    "two": question("Show me an emoji", n=2),
    "seeded": question("Show me an emoji", temperature=1.0, seed=7),
}


class Recorder(Connection):
    """A connection that writes down what it heard."""

    exchanges: list[Json]

    async def get(self, path: str, seconds: float | None = None) -> Json:
        answer = await super().get(path, seconds)
        self.exchanges.append({"path": path, "body": None, "answer": answer})
        return answer

    async def post(self, path: str, body: Json, seconds: float | None = None) -> Json:
        answer = await super().post(path, body, seconds)
        self.exchanges.append({"path": path, "body": _kept(body), "answer": answer})
        return answer

    async def events(self, path, body):
        heard: list[Json] = []
        self.exchanges.append({"path": path, "body": _kept(body), "events": heard})
        async for event in super().events(path, body):
            heard.append(event)
            yield event


def engine_at(url: str, **options: Any) -> Completions:
    """The engine in front of a server there, not started."""
    return Completions(OpenAIEngineOptions(target=url, folder="builtin:demo", **options))


async def answer_of(engine: Completions, request: pb.PreprocessedRequest) -> list[pb.LLMEngineOutput]:
    """All outputs of a request."""
    return [each async for each in engine.generate(request, GenerateContext("a"))]


class RecordedServer:
    """Answers what was recorded under `name`, on a port of its own.

    `break_after` events of a stream the connection breaks, or with `hang` nothing more comes. `status` and
    `headers` are for every POST instead of its answer, `health` is the status of `/health`.
    """

    def __init__(self, name: str) -> None:
        recorded = json.loads((FOLDER / f"{name}.json").read_text())
        self._answers = {_key(each["path"], each["body"]): each for each in recorded}
        self._server: asyncio.Server | None = None
        self._serving = set[asyncio.Task[None]]()
        self.break_after: int | None = None
        self.hang = False
        self.status = 200
        self.health = 200
        self.headers: dict[str, str] = {}
        self.error: Json = {"error": {"message": "no"}}
        self.heads: list[str] = []
        self.bodies: list[Json] = []
        self.closed = asyncio.Event()

    async def start(self) -> str:
        """Listen; returns the URL."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def end(self) -> None:
        """As the end of a process would."""
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._answer(reader, writer)
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        method, path, _ = head.split(" ", 2)
        sizes = [line.split(":")[1] for line in head.lower().split("\r\n") if "content-length" in line]
        size = int(sizes[0]) if sizes else 0
        body = json.loads(await reader.readexactly(size)) if size else None
        if body is not None:
            self.bodies.append(body)
        status, kind, parts = 200, "application/json", [json.dumps(self.error)]
        if method == "POST" and self.status != 200:
            status = self.status
        elif path == "/health":
            status, parts = self.health, []
        elif (found := self._answers.get(_key(path, _kept(body)))) is None:
            status = 404
        elif "events" in found:
            kind, parts = "text/event-stream", [f"data: {json.dumps(each)}\n\n" for each in found["events"]]
        else:
            parts = [json.dumps(found["answer"])]
        lines = {"content-type": kind, "connection": "close", **self.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{head}transfer-encoding: chunked\r\n\r\n".encode())
        async for part in self._parts(parts, is_stream=kind == "text/event-stream", reader=reader):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
        if not (kind == "text/event-stream" and self.break_after is not None):
            writer.write(b"0\r\n\r\n")

    async def _parts(
        self, parts: list[str], *, is_stream: bool, reader: asyncio.StreamReader
    ) -> AsyncIterator[bytes]:
        for number, part in enumerate(parts):
            if is_stream and number == self.break_after:
                if self.hang:
                    await reader.read()
                    self.closed.set()
                return
            yield part.encode()


def _kept(body: Json | None) -> Json | None:
    kept = body and {name: value for name, value in body.items() if name not in LEFT_OUT}
    return json.loads(json.dumps(kept))  # a copy


def _key(path: str, body: Json | None) -> str:
    return f"{path} {json.dumps(body, sort_keys=True)}"


async def record(url: str, name: str) -> None:
    """Ask everything, and write down what is answered."""
    from enginewire.openai_engine import engine as module

    Recorder.exchanges = []
    module.Connection = Recorder  # type: ignore[misc]  # here only
    engine = engine_at(url)
    await engine.start(0)
    for each in SCENARIOS.values():
        await answer_of(engine, each)
    await engine.cleanup()
    # Of streams that were left at different places the longest.
    ordered = sorted(Recorder.exchanges, key=lambda each: len(each.get("events", ())))
    unique = {_key(each["path"], each["body"]): each for each in ordered}
    text = json.dumps(list(unique.values()), ensure_ascii=True, indent=0)
    (FOLDER / f"{name}.json").write_text(text.replace(str(PATH), "/models/demo") + "\n")


if __name__ == "__main__":
    asyncio.run(record(*sys.argv[1:]))
