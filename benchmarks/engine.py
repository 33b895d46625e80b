"""Tokens per second of the torch engine, in process and through the gRPC server, beside a peer.

    python benchmarks/engine.py [--json] [--peer transformers|none] [--shape 15m|110m|500m]
        [--dtype float32|bfloat16] [--batches 1 8 32] [--output 128] [--mixed 64] [--rounds 3]

in-process    TorchEngine on its own thread, outputs read from its step listener
server        the same engine behind enginewire-server on a Unix socket, read as multiplexed frames
transformers  its continuous batching, with the same token budget and batch size
against       the in-process engine of another checkout (--against FOLDER), for before and after

Every contestant is a process of its own that computes only while it is asked. The rounds are
interleaved and the medians compared, because a shared machine drifts. Random weights, greedy, EOS
ignored. `decode` counts tokens after the first, over the time after every request had its first;
`output` counts all tokens over the whole time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from workloads import SHAPES, VOCAB, Job, make_model, mixed, static_batch  # noqa: E402

STEP_TOKENS = 512
MAX_SEQS = 32
PROMPT = 128
CAPACITY = 32_768
"""Tokens that fit into every contestant's KV cache."""

Times = list[list[float]]
"""Per job: when each of its tokens arrived, in seconds after the start."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one run: tokens per second, and seconds between the tokens of a request."""

    decode: float
    output: float
    gap_p50: float
    gap_p99: float


def rates(times: Times) -> Rates:
    first, last = max(row[0] for row in times), max(row[-1] for row in times)
    later = sum(stamp > first for row in times for stamp in row)
    gaps = sorted(b - a for row in times for a, b in zip(row, row[1:], strict=False)) or [0.0]
    return Rates(
        decode=later / max(last - first, 1e-9),
        output=sum(map(len, times)) / last,
        gap_p50=gaps[len(gaps) // 2],
        gap_p99=gaps[int(len(gaps) * 0.99)],
    )


class Contestant:
    """A child process: one line of JSON in (jobs), one out (times)."""

    def __init__(self, name: str, root: Path, model: Path, options: list[str]) -> None:
        self.name = name
        env = os.environ | {"PYTHONPATH": f"{root / 'proto'}:{root}"}
        kind = "in-process" if name == "against" else name
        command = [sys.executable, __file__, "--child", kind, "--model", str(model), *options]
        self._child = subprocess.Popen(
            command, cwd=root, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, jobs: list[Job]) -> Times:
        assert self._child.stdin and self._child.stdout
        self._child.stdin.write(json.dumps([asdict(job) for job in jobs]) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        assert answer, f"{self.name} died"
        times: Times = json.loads(answer)
        assert [len(row) for row in times] == [job.num_output for job in jobs], f"{self.name} lost tokens"
        return times

    def close(self) -> None:
        assert self._child.stdin
        self._child.stdin.close()
        self._child.wait(30)


# --- what runs inside the children -------------------------------------------------------------


async def run_in_process(model: str, options: argparse.Namespace) -> AsyncIterator[Times]:
    from engine_server.interface import GenerateContext, StepOutputs
    from engine_server.torch_engine.engine import TorchEngine
    from engine_server.torch_engine.options import TorchEngineOptions

    chosen = TorchEngineOptions(
        model=model,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=STEP_TOKENS,
        num_kv_blocks=CAPACITY // 16,
        **({"quantization": options.quantization} if options.quantization else {}),
    )
    engine = TorchEngine(chosen)
    await engine.start(0)
    try:
        async for jobs in read_jobs():
            contexts = {GenerateContext(f"r{i}"): i for i in range(len(jobs))}
            times: Times = [[] for _ in jobs]
            ended = asyncio.Event()
            begin = time.perf_counter()

            def listen(
                step: StepOutputs, contexts=contexts, times=times, ended=ended, begin=begin, jobs=jobs
            ) -> None:
                now = time.perf_counter() - begin
                assert not step.failures, step.failures
                for context in step.contexts:
                    times[contexts[context]].append(now)
                for context, output in step.outputs:
                    times[contexts[context]] += [now] * len(output.token_ids)
                if sum(map(len, times)) >= sum(job.num_output for job in jobs):
                    ended.set()

            engine.set_step_listener(listen)
            for context, job in zip(contexts, jobs, strict=True):
                await wait_until(begin + job.arrival)
                engine.submit(make_request(job), context)
            await ended.wait()
            yield times
    finally:
        await engine.cleanup()


async def run_server(model: str, options: argparse.Namespace) -> AsyncIterator[Times]:
    import grpc

    from backend_client.engine_client import CHANNEL_OPTIONS, EngineClient
    from enginewire import v1 as pb

    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        target = f"unix:{folder}/engine.sock"
        arguments = ["--uds", f"{folder}/engine.sock", "--log-level", "error"]
        arguments += ["--max-num-seqs", str(MAX_SEQS), "--max-num-batched-tokens", str(STEP_TOKENS)]
        arguments += ["--num-kv-blocks", str(CAPACITY // 16)]
        arguments += ["--quantization", options.quantization] if options.quantization else []
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine_server", model, *arguments, stdout=asyncio.subprocess.DEVNULL
        )
        async with EngineClient(target) as client:
            await client.wait_ready(120)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS))
        async for jobs in read_jobs():
            call = pb.EngineServiceStub(channel).GenerateMultiplexed()
            times: Times = [[] for _ in jobs]
            begin = time.perf_counter()

            async def submit(call=call, jobs=jobs, begin=begin) -> None:
                for handle, job in enumerate(jobs):
                    await wait_until(begin + job.arrival)
                    asked = pb.GenerateRequest(request_id=f"r{begin}-{handle}", request=make_request(job))
                    submits = [pb.Submit(handle=handle, generate=asked)]
                    await call.write(pb.GenerateMultiplexedRequest(submits=submits))
                await call.done_writing()

            submitting = asyncio.create_task(submit())
            async for frame in call:
                now = time.perf_counter() - begin
                for handle in frame.handles:
                    times[handle].append(now)
                for event in frame.events:
                    times[event.handle] += [now] * len(event.output.token_ids)
            await submitting
            yield times
        process.terminate()
        await process.wait()


async def run_transformers(model: str, options: argparse.Namespace) -> AsyncIterator[Times]:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, logging
    from transformers.generation import ContinuousBatchingConfig

    logging.set_verbosity_error()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto", attn_implementation="sdpa").eval()
    async for jobs in read_jobs():
        # eos −1 and a length per request: nothing ends early.
        greedy = GenerationConfig(
            do_sample=False, max_new_tokens=256, eos_token_id=-1, pad_token_id=2, bos_token_id=1
        )
        batching = ContinuousBatchingConfig(
            page_size=64,
            num_blocks=CAPACITY // 64,
            max_batch_tokens=STEP_TOKENS,
            max_requests_per_batch=MAX_SEQS,
            allow_block_sharing=False,
        )
        manager = loaded.init_continuous_batching(
            generation_config=greedy, continuous_batching_config=batching
        )
        manager.start()
        times: Times = [[] for _ in jobs]
        begin = time.perf_counter()

        async def submit(manager=manager, jobs=jobs, begin=begin) -> None:
            for number, job in enumerate(jobs):
                await wait_until(begin + job.arrival)
                manager.add_request(
                    job.prompt, request_id=str(number), max_new_tokens=job.num_output, streaming=True
                )

        def collect(manager=manager, jobs=jobs, times=times, begin=begin) -> None:
            while any(len(row) < job.num_output for row, job in zip(times, jobs, strict=True)):
                result = manager.get_result(timeout=5)
                if result is None:
                    assert manager.is_running(), "transformers stopped"
                    continue
                assert not result.error, result.error
                row = times[int(result.request_id)]
                row += [time.perf_counter() - begin] * (len(result.generated_tokens) - len(row))

        await asyncio.gather(submit(), asyncio.to_thread(collect))
        manager.stop(block=True)
        yield times


async def read_jobs() -> AsyncIterator[list[Job]]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield [Job(**fields) for fields in json.loads(line)]


async def wait_until(moment: float) -> None:
    if (seconds := moment - time.perf_counter()) > 0:
        await asyncio.sleep(seconds)


def make_request(job: Job):  # type: ignore[no-untyped-def]  # a child that runs transformers has no stubs
    from enginewire import v1 as pb

    return pb.PreprocessedRequest(
        token_ids=job.prompt,
        sampling_options=pb.SamplingOptions(temperature=0.0),
        stop_conditions=pb.StopConditions(max_tokens=job.num_output, ignore_eos=True),
    )


CHILDREN = {"in-process": run_in_process, "server": run_server, "transformers": run_transformers}


async def serve_child(options: argparse.Namespace) -> None:
    # Whatever a library prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    async for times in CHILDREN[options.child](options.model, options):
        print(json.dumps(times), file=answers, flush=True)


# --- the comparison ----------------------------------------------------------------------------


def workload(options: argparse.Namespace) -> dict[str, list[Job]]:
    cases = {f"batch {size}": static_batch(size, PROMPT, options.output) for size in options.batches}
    if options.mixed:
        cases["burst"] = mixed(options.mixed, rate=None)
    if options.mixed and options.poisson:
        cases["poisson"] = mixed(options.mixed, rate=options.poisson)
    return cases


def compare(options: argparse.Namespace) -> dict[str, dict[str, Rates]]:
    """Medians per case and contestant."""
    names = [name for name in options.contestants if options.against or name != "against"]
    names += [] if options.peer == "none" else [options.peer]
    quantization = ["--quantization", options.quantization] if options.quantization else []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model, options.shape, options.dtype)
        contestants = [
            Contestant(
                name,
                options.against if name == "against" else ROOT,
                model,
                quantization if name in ("in-process", "server") else [],
            )
            for name in names
        ]
        for contestant in contestants:
            contestant.run(static_batch(2, PROMPT, 4))
        found: dict[str, dict[str, list[Rates]]] = {}
        for _ in range(options.rounds):
            for case, jobs in workload(options).items():
                for contestant in contestants:
                    run = rates(contestant.run(jobs))
                    found.setdefault(case, {}).setdefault(contestant.name, []).append(run)
        for contestant in contestants:
            contestant.close()
    return {case: {name: _median(runs) for name, runs in row.items()} for case, row in found.items()}


def _median(runs: list[Rates]) -> Rates:
    columns = zip(*(asdict(run).values() for run in runs), strict=True)
    return Rates(*map(statistics.median, columns))


def report(medians: dict[str, dict[str, Rates]], options: argparse.Namespace) -> None:
    rows = [(case, name, run) for case, row in medians.items() for name, run in row.items()]
    for case, name, run in rows:
        gaps = f"{run.gap_p50 * 1e3:7.1f} / {run.gap_p99 * 1e3:7.1f} ms between tokens (p50 / p99)"
        print(f"{case:<9} {name:<13} {run.decode:8.1f} decode {run.output:8.1f} output tokens/s {gaps}")
    if options.json:
        print(json.dumps(summary(medians, options)))


def summary(medians: dict[str, dict[str, Rates]], options: argparse.Namespace) -> dict[str, object]:
    found: dict[str, object] = {
        "shape": options.shape,
        "dtype": options.dtype,
        "quantization": options.quantization,
        "decode_tokens_per_s": {
            case: {name: round(run.decode, 1) for name, run in row.items()} for case, row in medians.items()
        },
        "output_tokens_per_s": {
            case: {name: round(run.output, 1) for name, run in row.items()} for case, row in medians.items()
        },
    }
    ratios = {
        "ratio_to_transformers_cb": ("in-process", "transformers"),
        "ratio_server_to_in_process": ("server", "in-process"),
        "ratio_to_against": ("in-process", "against"),
    }
    for key, (ours, other) in ratios.items():
        pairs = {case: (row[ours], row[other]) for case, row in medians.items() if {ours, other} <= set(row)}
        if pairs:
            found[key] = {case: _ratio(case, *pair) for case, pair in pairs.items()}
    return found


def _ratio(case: str, ours: Rates, other: Rates) -> float:
    """By decode rate for a static batch; a mixed load has no common first token, so by output rate."""
    static = case.startswith("batch")
    return round(ours.decode / other.decode if static else ours.output / other.output, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a last line for programs")
    parser.add_argument("--peer", choices=["transformers", "none"], default="transformers")
    parser.add_argument("--contestants", nargs="+", default=["against", "in-process", "server"])
    parser.add_argument("--against", type=Path, help="folder of another checkout")
    parser.add_argument("--shape", choices=SHAPES, default="110m")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--quantization", default="", help="int8, for our engine only")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--output", type=int, default=128, help="tokens per request of a static batch")
    parser.add_argument("--mixed", type=int, default=0, help="requests of the mixed burst; 0 leaves it out")
    parser.add_argument("--poisson", type=float, default=0.0, help="the mixed load again, at so many per second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(serve_child(options))
    else:
        report(compare(options), options)


if __name__ == "__main__":
    main()
