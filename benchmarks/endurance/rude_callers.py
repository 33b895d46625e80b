"""What callers who stall, leave, reset and cancel cost the server and everybody else.

    python benchmarks/endurance/rude_callers.py CASE [--count N] [--seed N]

`stalled`: 64 readers that take nothing, at each face in turn, and how long neighbours wait between tokens,
against the same without them, as medians of the p99 of each round. `resets`: calls that are reset as soon as
they begin. `cancels`: from a cancelled call to the moment at which the engine holds nothing of it. `leavers`:
callers of the HTTP face who hang up, with memory and descriptors of backend and engine.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import grpc
import h2.connection
import psutil
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginewire import v1 as pb

FACES = ("engine", "multiplexed", "backend", "http", "smg")
NUM_STALLED, NUM_NEIGHBOURS, NEIGHBOUR_TOKENS = 64, 8, 200
# Room for those who stall and their neighbours.
ENGINE = ("--engine", "mocker", "--mocker-itl-ms", "10", "--max-num-seqs", "128", "--log-level", "error")
AT_ONCE = 6
GENERATE = "/enginewire.v1.EngineService/Generate"


@asynccontextmanager
async def program(*argv: str) -> AsyncIterator[psutil.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *argv, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


class Stack:
    """Where everything listens."""

    def __init__(self, folder: str) -> None:
        ports = []
        for _ in range(3):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
        self.engine, self.backend = f"unix:{folder}/e", f"127.0.0.1:{ports[0]}"
        self.http, self.smg = ports[1], f"127.0.0.1:{ports[2]}"
        faces = ("--port", ports[0], "--http-port", ports[1], "--smg-port", ports[2])
        self.serve = ("enginewire.backend", "serve", *map(str, faces), "--target", self.engine)

    async def load(self) -> pb.Load:
        async with channel(self.engine) as to:
            return (await pb.DiscoveryServiceStub(to).GetLoad(pb.GetLoadRequest(), wait_for_ready=True)).load

    async def speaks_http(self) -> None:
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.http)
                writer.close()
                return
            await asyncio.sleep(0.05)

    async def idle(self) -> None:
        while (load := await self.load()).running or load.waiting or load.kv_blocks_used:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def channel(target: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])


@asynccontextmanager
async def stack(*engine: str) -> AsyncIterator[tuple[Stack, psutil.Process, psutil.Process]]:
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        made = Stack(folder)
        async with (
            program("enginewire.server", *(engine or ENGINE), "--uds", f"{folder}/e") as server,
            program(*made.serve) as backend,
        ):
            await made.idle()
            async with channel(made.backend) as to:
                await asyncio.wait_for(to.channel_ready(), 60)
            await made.speaks_http()
            yield made, server, backend


def asked(request_id: str, max_tokens: int) -> pb.GenerateRequest:
    request = pb.PreprocessedRequest(token_ids=[1, 2, 3])
    request.stop_conditions.max_tokens, request.stop_conditions.ignore_eos = max_tokens, True
    return pb.GenerateRequest(request_id=request_id, request=request)


async def gaps_of(made: Stack, number: int) -> list[float]:
    """Seconds between tokens, as a neighbour on a connection of its own gets them."""
    found = []
    async with channel(made.engine) as to:
        last = 0.0
        async for _ in pb.EngineServiceStub(to).Generate(
            asked(f"n{number}-{time.time_ns()}", NEIGHBOUR_TOKENS)
        ):
            now = time.perf_counter()
            found += [now - last] if last else []
            last = now
    return found


async def p99_of_neighbours(made: Stack) -> float:
    gaps = await asyncio.gather(*(gaps_of(made, number) for number in range(NUM_NEIGHBOURS)))
    return statistics.quantiles([gap for each in gaps for gap in each], n=100)[-1]


def http_head(body: bytes) -> bytes:
    fields = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join((*fields, f"Content-Length: {len(body)}", "", "")).encode()


@asynccontextmanager
async def stalled_at(face: str, made: Stack) -> AsyncIterator[None]:
    """Readers that have asked for much and take nothing."""
    if face == "http":
        body = json.dumps({"prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
        head = http_head(body)
        sockets = [socket.create_connection(("127.0.0.1", made.http)) for _ in range(NUM_STALLED)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.sendall(head + body)
        yield
        for each in sockets:
            each.close()
        return
    target = {"backend": made.backend, "smg": made.smg}.get(face, made.engine)
    async with channel(target) as to:
        calls = [await begin(face, to, number) for number in range(NUM_STALLED)]
        yield
        for call in calls:
            call.cancel()


async def begin(face: str, to: grpc.aio.Channel, number: int) -> grpc.aio.Call:
    name = f"stalled-{face}-{number}"
    if face == "engine":
        call = pb.EngineServiceStub(to).Generate(asked(name, 4000))
    elif face == "multiplexed":
        call = pb.EngineServiceStub(to).GenerateMultiplexed()
        submit = pb.Submit(handle=1, generate=asked(name, 4000))
        await call.write(pb.GenerateMultiplexedRequest(submits=[submit]))
    elif face == "backend":
        request = pb.BackendServiceGenerateRequest(text="x", request=asked("", 4000).request)
        request.request.ClearField("token_ids")
        call = pb.BackendServiceStub(to).Generate(request)
    else:
        asking = vllm.GenerateRequest(request_id=name, stream=True, tokenized={"input_ids": [1]})
        asking.sampling_params.max_tokens, asking.sampling_params.ignore_eos = 4000, True
        call = to.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")(asking.SerializeToString())
    return call


async def stalled(count: int, seed: int) -> dict[str, object]:
    draw = random.Random(seed)
    found: dict[str, list[float]] = {name: [] for name in ("alone", *FACES)}
    async with stack() as (made, _, _):
        for _ in range(count):
            # By turns, so that whatever else the machine does hits all of them alike.
            for name in draw.sample([*found], len(found)):
                found[name].append(await beside(name, made))
            print({name: [round(p99 * 1000, 1) for p99 in all_p99] for name, all_p99 in found.items()})
    medians = {name: statistics.median(all_p99) for name, all_p99 in found.items()}
    return {
        "rounds": count,
        "p99_ms": {name: round(p99 * 1000, 2) for name, p99 in medians.items()},
        "times_alone": {name: round(p99 / medians["alone"], 2) for name, p99 in medians.items()},
    }


async def beside(name: str, made: Stack) -> float:
    """What neighbours have while that face has its stalled readers, or while they are `alone`."""
    if name == "alone":
        return await p99_of_neighbours(made)
    async with stalled_at(name, made):
        while (await made.load()).running < NUM_STALLED:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        found = await p99_of_neighbours(made)
    await made.idle()
    return found


async def resets(count: int, seed: int) -> dict[str, object]:
    async with stack() as (made, server, _), channel(made.engine) as to:
        victim = pb.DiscoveryServiceStub(to)
        await victim.GetLoad(pb.GetLoadRequest(), wait_for_ready=True)
        before, began, waits, done, connections = server.memory_info().rss, time.perf_counter(), [0.0], 0, 0
        while done < count:
            connections += 1
            done += await reset_many(made, victim, done, count, waits)
        took = time.perf_counter() - began
        await made.idle()
        grown = (server.memory_info().rss - before) / (1 << 20)
    return {
        "resets": done,
        "connections": connections,
        "seconds": round(took, 1),
        "grown_mib": round(grown, 1),
        "victim_p50_ms": round(statistics.median(waits) * 1000, 1),
        "victim_p99_ms": round(sorted(waits)[int(len(waits) * 0.99)] * 1000, 1),
        "victim_max_ms": round(max(waits) * 1000, 1),
    }


async def reset_many(
    made: Stack, victim: pb.DiscoveryServiceStub, begin: int, end: int, waits: list[float]
) -> int:
    """How many calls were reset on one connection before the server had enough of it."""
    reader, writer = await asyncio.open_unix_connection(made.engine.removeprefix("unix:"))
    state, message, done = h2.connection.H2Connection(), asked("", 4000), 0
    state.initiate_connection()
    fields = {":method": "POST", ":scheme": "http", ":path": GENERATE, ":authority": "x", "te": "trailers"}
    headers = [*{**fields, "content-type": "application/grpc"}.items()]
    draining = asyncio.create_task(reader.read(-1))
    with suppress(ConnectionError):
        for number in range(begin, end):
            message.request_id = f"r{number}"
            data, stream = message.SerializeToString(), state.get_next_available_stream_id()
            state.send_headers(stream, headers)
            # As a caller that cares for no window.
            state.outbound_flow_control_window = 65535
            state.send_data(stream, b"\0" + len(data).to_bytes(4, "big") + data, end_stream=True)
            state.reset_stream(stream)
            done += 1
            if number % 100 == 0:
                writer.write(state.data_to_send())
                await writer.drain()
            if number % 500 == 0:
                at = time.perf_counter()
                await victim.GetLoad(pb.GetLoadRequest())
                waits.append(time.perf_counter() - at)
        writer.write(state.data_to_send())
        await writer.drain()
    writer.close()
    with suppress(OSError):
        await draining
    return done


async def cancels(count: int, seed: int) -> dict[str, object]:
    draw, times = random.Random(seed), []
    async with stack() as (made, _, _), channel(made.engine) as to:
        stub, loads = pb.EngineServiceStub(to), pb.DiscoveryServiceStub(to)
        for number in range(count):
            call = stub.Generate(asked(f"c{number}", 4000))
            for _ in range(draw.randrange(1, 4)):
                await call.read()
            at = time.perf_counter()
            call.cancel()
            while (load := (await loads.GetLoad(pb.GetLoadRequest())).load).running or load.kv_blocks_used:
                pass
            times.append((time.perf_counter() - at) * 1000)
    parts = statistics.quantiles(times, n=100)
    return {"cancels": count, "p50_ms": round(parts[49], 1), "p99_ms": round(parts[-1], 1), "step_ms": 10}


async def leavers(count: int, seed: int) -> dict[str, object]:
    body = json.dumps({"prompt": "x" * 50, "max_tokens": 200, "stream": True, "ignore_eos": True}).encode()
    head = http_head(body)
    rows = []
    async with stack("--engine", "mocker", "--mocker-itl-ms", "2", "--log-level", "error") as (
        made,
        server,
        backend,
    ):

        async def leave(numbers: AsyncIterator[int]) -> None:
            async for _ in numbers:
                reader, writer = await asyncio.open_connection("127.0.0.1", made.http)
                writer.write(head + body)
                await reader.readuntil(b"data: ")
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

        async def counted(most: int) -> AsyncIterator[int]:
            for number in range(most // 16):
                yield number

        for _ in range(11):
            sizes = [(each.memory_info().rss / (1 << 20), each.num_fds()) for each in (server, backend)]
            rows.append([round(value, 1) for pair in sizes for value in pair])
            print(rows[-1], flush=True)
            await asyncio.gather(*(leave(counted(count // 10)) for _ in range(16)))
            await made.idle()
    return {"leavers": count, "engine_mib_fds_backend_mib_fds": [rows[0], rows[5], rows[-1]]}


CASES: dict[str, Callable[[int, int], object]] = {
    "stalled": stalled,
    "resets": resets,
    "cancels": cancels,
    "leavers": leavers,
}
COUNTS = {"stalled": 7, "resets": 100_000, "cancels": 1000, "leavers": 50_000}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = asyncio.run(CASES[options.case](options.count or COUNTS[options.case], options.seed))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
