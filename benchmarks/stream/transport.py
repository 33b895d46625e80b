"""Tokens per second of every path between an engine process and a consumer, in one run.

    python benchmarks/stream/transport.py [--streams 256] [--tokens 400] [--metrics] [--over-tcp] [--json]

floor         raw grpc.aio: constant bytes, no parsing, one message per token, one stream per request
per-request   Generate, one call per request, one token per message (logprobs=0 makes every token a message)
coalesced     Generate without logprobs: a reader that lags gets several tokens per message
multiplexed   GenerateMultiplexed, read as frames
end to end    multiplexed, detokenized, four stop strings, one asyncio consumer per request

With --over-tcp instead what guards and traces cost, as processor time of server and client, which says more
than rates on a machine with other work: servers over TCP, one plain, one that asks for an API key, one on
TLS, one on TLS that asks for certificate and key, one that sends traces to a collector. Of each per-request,
multiplexed, and

short         Generate, 8 tokens per request: calls, not tokens

The server is another process on a Unix socket, its engine the mocker, which answers as fast as it is
asked. Absolute figures are the machine's; the ratios are what to look at.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.access.target_key import TargetKey
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.calling.channel import open_channel
from enginewire.calling.trust import THIS_USER, Trust
from enginewire.program import event_loop
from enginewire.tls.target import TargetTls

PROMPT = list(b"The quick brown fox jumps over the lazy dog and runs away. ")
STOPS = ["\n\nUser:", "<|end|>", "###", "STOP HERE"]
FLOOR_METHOD = "/bench.Floor/Stream"
COLLECTOR_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
KEY = "a-key-that-only-this-benchmark-knows"
SHORT = 8
FLOOR_MESSAGE = b"\x0a\x0a\x0a\x01\x2a\x10\x05\x12\x04abcd"


@dataclass(frozen=True, slots=True)
class Target:
    """A server of this run, and its process where that is looked at."""

    name: str
    trust: Trust = THIS_USER
    process: int = 0

    def processor_seconds(self) -> float:
        """What its process has taken of the processors so far, by /proc."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(number: int, tokens: int, logprobs: int | None = None) -> pb.GenerateRequest:
    """A request that generates exactly `tokens` tokens."""
    return pb.GenerateRequest(
        request_id=f"bench-{time.monotonic_ns()}-{number}",
        request=pb.PreprocessedRequest(
            token_ids=PROMPT,
            stop_conditions=pb.StopConditions(max_tokens=tokens, ignore_eos=True),
            output_options=pb.OutputOptions(logprobs=logprobs),
        ),
    )


async def floor(target: Target, streams: int, tokens: int) -> int:
    """Read constant messages."""
    async with open_channel(target.name, trust=target.trust) as channel:
        method = channel.unary_stream(FLOOR_METHOD)

        async def read() -> int:
            count = 0
            async for _ in method(str(tokens).encode(), wait_for_ready=True):
                count += 1
            return count

        return sum(await asyncio.gather(*(read() for _ in range(streams))))


async def per_request(target: Target, streams: int, tokens: int) -> int:
    """Read one Generate call per request, one token per message."""
    return await read_calls(target, [[request(number, tokens, logprobs=0) for number in range(streams)]])


async def coalesced(target: Target, streams: int, tokens: int) -> int:
    """Read one Generate call per request, as the server likes to send."""
    return await read_calls(target, [[request(number, tokens) for number in range(streams)]])


async def short(target: Target, streams: int, tokens: int) -> int:
    """Read short answers, one call after the other: what a call costs beside its tokens."""
    rounds = [[request(number, SHORT) for number in range(streams)] for _ in range(tokens // SHORT)]
    return await read_calls(target, rounds)


async def read_calls(target: Target, rounds: list[list[pb.GenerateRequest]]) -> int:
    """Tokens of one Generate call per request, those of a round at the same time."""
    async with open_channel(target.name, trust=target.trust) as channel:
        stub = pb.EngineServiceStub(channel)

        async def read(asked: pb.GenerateRequest) -> int:
            count = 0
            async for response in stub.Generate(asked):
                count += len(response.output.token_ids)
            return count

        return sum([sum(await asyncio.gather(*map(read, requests))) for requests in rounds])


async def multiplexed(target: Target, streams: int, tokens: int) -> int:
    """Read the frames of one stream."""
    async with open_channel(target.name, trust=target.trust) as channel:
        call = pb.EngineServiceStub(channel).GenerateMultiplexed()
        submits = [pb.Submit(handle=n, generate=request(n, tokens)) for n in range(streams)]
        await call.write(pb.GenerateMultiplexedRequest(submits=submits))
        await call.done_writing()
        count = 0
        async for frame in call:
            # To lists, as any reader has to.
            handles, positions = list(frame.handles), list(frame.first_output_positions)
            assert len(handles) == len(positions)
            count += len(list(frame.token_ids))
            count += sum(len(event.output.token_ids) for event in frame.events)
        return count


async def end_to_end(target: Target, streams: int, tokens: int) -> int:
    """Consume text: detokenized, with stop strings, one asyncio consumer per request."""
    return await _texts(target, streams, tokens, is_inline=False)


async def inline(target: Target, streams: int, tokens: int) -> int:
    """The same, with functions for consumers, which no task has to be woken for."""
    return await _texts(target, streams, tokens, is_inline=True)


async def _texts(target: Target, streams: int, tokens: int, *, is_inline: bool) -> int:
    async with EngineClient(target.name, trust=target.trust) as client:
        await client.wait_ready(10)
        files = await client.tokenizer_files()
        backend = Backend(client, Vocabulary(Tokenizer.from_str(files["tokenizer.json"].decode())))

        async def consume(number: int) -> int:
            asked = request(number, tokens).request
            asked.stop_conditions.stop.extend(STOPS)
            count = 0

            def take(output: BackendOutput) -> None:
                nonlocal count
                count += len(output.token_ids)

            async for item in backend.generate(asked, inline=take if is_inline else None):
                assert item.data is not None, item.error
                take(item.data)
            return count

        return sum(await asyncio.gather(*(consume(number) for number in range(streams))))


Rates = dict[str, float]
Measured = Callable[[Target, int, int], Awaitable[int]]


async def measure(path: Measured, target: Target, streams: int, tokens: int) -> float:
    """Tokens per second, checked to be all of them."""
    begin = time.perf_counter()
    count = await path(target, streams, tokens)
    seconds = time.perf_counter() - begin
    assert count == streams * tokens, f"{path.__name__}: {count} tokens instead of {streams * tokens}"
    return count / seconds


async def measure_cost(path: Measured, target: Target, streams: int, tokens: int) -> tuple[float, float]:
    """Processor time of the server and of this process, in µs per token."""
    server, own = target.processor_seconds(), time.process_time()
    count = await path(target, streams, tokens)
    taken = target.processor_seconds() - server, time.process_time() - own
    return taken[0] / count * 1e6, taken[1] / count * 1e6


@contextlib.asynccontextmanager
async def process_of(*command: str) -> AsyncIterator[int]:
    """A process of Python that ends with the context, by its number."""
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def engine_process(target: Target, streams: int, *options: str) -> AsyncIterator[Target]:
    """An engine server that is ready."""
    async with process_of(
        "-m", "enginewire.server", "--engine", "mocker", "--max-num-seqs", str(streams),
        "--max-num-queued-reqs", "4096", "--log-level", "error", *options,
    ) as process:  # fmt: skip
        async with EngineClient(target.name, trust=target.trust) as client:
            await client.wait_ready(20)
        yield replace(target, process=process)


def engine_on_socket(folder: Path, streams: int, *options: str) -> AbstractAsyncContextManager[Target]:
    """An engine server on a Unix socket in this folder."""
    uds = folder / "engine.sock"
    return engine_process(Target(f"unix:{uds}"), streams, f"--uds={uds}", *options)


def over_tcp(folder: Path, collector: int) -> dict[str, tuple[Trust, list[str]]]:
    """The servers over TCP: what a client brings to each, and what the server is told."""
    import trustme

    authority, own = trustme.CA(), {}
    authority.cert_pem.write_to_path(folder / "authority.pem")
    for name in ("engine", "backend"):
        own[name] = folder / f"{name}.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(own[name])
    tls, key = TargetTls(authorities=folder / "authority.pem"), TargetKey(KEY)
    both = TargetTls(authorities=folder / "authority.pem", certificate=own["backend"])
    on_tls, asks = [f"--ssl-certfile={own['engine']}"], [f"--api-key={KEY}"]
    certificates = f"--ssl-ca-certs={folder / 'authority.pem'}"
    return {
        "TCP": (THIS_USER, []),
        "key": (Trust(api_key=key), asks),
        "TLS": (Trust(tls=tls), on_tls),
        "mTLS, key": (Trust(tls=both, api_key=key), [*on_tls, certificates, *asks]),
        "traces": (THIS_USER, [f"--otlp-traces-endpoint=http://127.0.0.1:{collector}"]),
    }


def free_port() -> int:
    """One that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def serve_floor(path: str, collector: int | None) -> None:
    """The floor's server: as little as grpc.aio can do per message. Beside it a collector that forgets."""

    async def stream(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        for _ in range(int(data)):
            yield FLOOR_MESSAGE

    async def take(spans: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return b""

    server = grpc.aio.server()
    for path_of, handler in (
        (FLOOR_METHOD, grpc.unary_stream_rpc_method_handler(stream)),  # type: ignore[arg-type]  # aio handler
        (COLLECTOR_METHOD, grpc.unary_unary_rpc_method_handler(take)),
    ):
        service, method = path_of.strip("/").split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"unix:{path}")
    if collector is not None:
        server.add_insecure_port(f"127.0.0.1:{collector}")
    await server.start()
    await server.wait_for_termination()


async def run(streams: int, tokens: int, rounds: int, metrics: Sequence[str]) -> Rates:
    """Every path, `rounds` times in turn; the best of each. `metrics` are options of the server."""
    few = max(20, tokens // 10)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        floor_target = Target(f"unix:{folder}/floor.sock")
        await stack.enter_async_context(process_of(__file__, "--serve-floor", f"{folder}/floor.sock"))
        near = await stack.enter_async_context(engine_on_socket(folder, streams, *metrics))
        paths: dict[str, tuple[Measured, Target, int]] = {
            # The slow paths get fewer tokens so that each round takes about as long.
            "floor": (floor, floor_target, few),
            "per-request": (per_request, near, few),
            "coalesced": (coalesced, near, max(20, tokens // 5)),
            "multiplexed": (multiplexed, near, tokens),
            "end to end": (end_to_end, near, tokens),
            "inline": (inline, near, tokens),
        }
        best = dict.fromkeys(paths, 0.0)
        for _ in range(rounds):
            for name, (path, target, count) in paths.items():
                best[name] = max(best[name], await measure(path, target, streams, count))
        return best


Costs = dict[str, dict[str, tuple[float, float]]]
"""µs of the server and of its client by path and server: per call of 8 tokens, and per token of long ones."""


async def run_over_tcp(streams: int, tokens: int, rounds: int) -> Costs:
    """Each way to guard or trace calls, `rounds` times in turn; the least that each took."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        collector, targets = free_port(), dict[str, Target]()
        serve = ("--serve-floor", f"{folder}/floor.sock", "--collector", str(collector))
        await stack.enter_async_context(process_of(__file__, *serve))
        for name, (trust, given) in over_tcp(folder, collector).items():
            target = Target(f"127.0.0.1:{(port := free_port())}", trust)
            server = engine_process(target, streams, f"--port={port}", *given)
            targets[name] = await stack.enter_async_context(server)
        paths = {
            "short": (short, 10 * SHORT),
            "per-request": (per_request, 100),
            "multiplexed": (multiplexed, tokens),
        }
        costs: Costs = {path: {} for path in paths}
        for _ in range(rounds):
            for path, (asked, count) in paths.items():
                for name, target in targets.items():
                    cost = await measure_cost(asked, target, streams, count)
                    costs[path][name] = min(costs[path].get(name, cost), cost, key=sum)
        for name, (server_us, own_us) in costs["short"].items():
            costs["short"][name] = server_us * SHORT, own_us * SHORT
        return costs


def print_costs(costs: Costs) -> None:
    """The table: per call or token, and beside the same without anything."""
    for path, by_server in costs.items():
        unit = "call" if path == "short" else "token"
        for name, (server, client) in by_server.items():
            ratio = (server + client) / sum(by_server["TCP"])
            print(f"{path:<12} {name:<10} {server:8.2f} + {client:8.2f} µs per {unit}   {ratio:5.2f} x TCP")


def main() -> None:
    """Print the table, and with --json a last line for programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--metrics", action="store_true", help="the engine server counts for Prometheus")
    parser.add_argument(
        "--over-tcp", action="store_true", help="instead: what keys, TLS and traces cost over TCP"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve-floor", help=argparse.SUPPRESS)
    parser.add_argument("--collector", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_floor:
        event_loop.run(serve_floor(arguments.serve_floor, arguments.collector))
        return
    sizes = arguments.streams, arguments.tokens, arguments.rounds
    if arguments.over_tcp:
        costs = event_loop.run(run_over_tcp(*sizes))
        print_costs(costs)
        if arguments.json:
            print(json.dumps(costs))
        return
    best = event_loop.run(run(*sizes, ("--metrics-port", "0") if arguments.metrics else ()))
    for name, rate in best.items():
        print(f"{name:<16} {rate:>12,.0f} tokens/s   {rate / best['floor']:6.1f} x floor")
    if arguments.json:
        print(
            json.dumps(
                {
                    "streams": arguments.streams,
                    "tokens_per_s": {name: round(rate) for name, rate in best.items()},
                    "ratio_multiplexed_to_per_request": round(best["multiplexed"] / best["per-request"], 2),
                    "ratio_multiplexed_to_coalesced": round(best["multiplexed"] / best["coalesced"], 2),
                    "ratio_multiplexed_to_floor": round(best["multiplexed"] / best["floor"], 2),
                    "ratio_end_to_end_to_floor": round(best["end to end"] / best["floor"], 2),
                    "ratio_inline_to_floor": round(best["inline"] / best["floor"], 2),
                }
            )
        )


if __name__ == "__main__":
    main()
