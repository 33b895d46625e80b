"""Is the torch engine right on this GPU, and how quick is it? One command, a few minutes.

    python benchmarks/model/gpu_check.py [--shapes 500m 7b] [--vllm-python VENV/bin/python] [--limit 540]

Right first, with the built-in model and its own questions:

parity    greedy answers in float32 are those that this machine's processors give
half      in bfloat16, where attention is one call of a kernel, first tokens are about as likely as in float32
graphs    decode steps as CUDA graphs make the answers of steps without
overlap   steps that are launched before the last tokens were read change nothing
crowd     with batch_invariant, an answer in a crowd is bit for bit the one that is given alone

Then quick: `engine.py` for each shape, beside transformers' continuous batching and, with --vllm-python,
vLLM. What does not fit into --limit seconds is left out, and said. The last line is JSON; the exit code is 1
when something is not right. With `--device cpu` it tries itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.server.demo_model import PATH, questions
from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.options import TorchEngineOptions

NUM_PROMPTS, NUM_TOKENS = 48, 48
HALF_TOLERANCE = 0.25
"""Of a log-probability: bfloat16 has three digits."""
SAME_ENOUGH = 0.95
"""Of answers: a graph pads a batch, and its products may round in another order."""
LONGEST_SPEED_SECONDS = 240.0
"""More than one shape takes on any GPU that it fits on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens and their log-probabilities."""

    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`found` is what was measured."""

    is_right: bool
    found: str


def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(PATH / "tokenizer.json"))
    texts = list(questions())[:NUM_PROMPTS]
    return [tokenizer.encode(f"{text}\n", add_special_tokens=False).ids for text in texts]


def request(prompt: list[int]) -> pb.PreprocessedRequest:
    return pb.PreprocessedRequest(
        token_ids=prompt,
        sampling_options=pb.SamplingOptions(temperature=0.0),
        stop_conditions=pb.StopConditions(max_tokens=NUM_TOKENS, ignore_eos=True),
        output_options=pb.OutputOptions(logprobs=0),
    )


@cache
def answers(device: str, dtype: str, *, alone: bool = False, **more: object) -> list[Answer]:
    """To all prompts, at once or one after the other. Several checks look at the same ones."""
    return asyncio.run(given(device, dtype, alone, **more))


async def given(device: str, dtype: str, alone: bool, **more: object) -> list[Answer]:
    options = TorchEngineOptions(model="builtin:demo", device=device, dtype=dtype, max_num_seqs=32, **more)
    engine = TorchEngine(options)
    await engine.start(0)
    try:
        asked = [answer(engine, prompt, f"r{number}") for number, prompt in enumerate(prompts())]
        return [await each for each in asked] if alone else list(await asyncio.gather(*asked))
    finally:
        await engine.cleanup()


async def answer(engine: TorchEngine, prompt: list[int], name: str) -> Answer:
    got = Answer([], [])
    async for output in engine.generate(request(prompt), GenerateContext(name)):
        if isinstance(output, pb.LLMEngineOutput):
            got.tokens.extend(output.token_ids)
            got.logprobs.extend(output.logprobs.token_logprobs)
    return got


def same(ours: list[Answer], others: list[Answer], share: float = 1.0) -> Verdict:
    """Whether at least that share of answers has the same tokens."""
    equal = sum(a.tokens == b.tokens for a, b in zip(ours, others, strict=True))
    return Verdict(equal >= share * len(ours), f"{equal} of {len(ours)} answers")


def parity(device: str) -> Verdict:
    return same(answers(device, "float32"), answers("cpu", "float32"))


def half(device: str) -> Verdict:
    pairs = zip(answers(device, "bfloat16"), answers("cpu", "float32"), strict=True)
    apart = [abs(a.logprobs[0] - b.logprobs[0]) for a, b in pairs if a.tokens[0] == b.tokens[0]]
    enough = len(apart) >= SAME_ENOUGH * NUM_PROMPTS
    return Verdict(
        enough and max(apart) < HALF_TOLERANCE,
        f"{len(apart)} of {NUM_PROMPTS} first tokens, at most {max(apart, default=0.0):.3f} apart",
    )


def graphs(device: str) -> Verdict:
    with_graphs = answers(device, "bfloat16")
    return same(with_graphs, answers(device, "bfloat16", enforce_eager=True), SAME_ENOUGH)


def overlap(device: str) -> Verdict:
    ahead = answers(device, "bfloat16")
    return same(ahead, answers(device, "bfloat16", async_scheduling=False))


def crowd(device: str) -> Verdict:
    alone = answers(device, "bfloat16", batch_invariant=True, alone=True)
    together = answers(device, "bfloat16", batch_invariant=True)
    equal = sum(a == b for a, b in zip(alone, together, strict=True))
    return Verdict(equal == len(alone), f"{equal} of {len(alone)} answers, bit for bit")


CHECKS: tuple[Callable[[str], Verdict], ...] = (parity, half, graphs, overlap, crowd)


def check(device: str) -> dict[str, Verdict]:
    """Every check; one that breaks is not right, and says why."""
    found: dict[str, Verdict] = {}
    for each in CHECKS:
        try:
            found[each.__name__] = each(device)
        except Exception as error:  # noqa: BLE001  # whatever it was, the others still run
            found[each.__name__] = Verdict(False, f"{type(error).__name__}: {error}")
        verdict = found[each.__name__]
        print(f"{each.__name__:<8} {'right' if verdict.is_right else 'WRONG'}: {verdict.found}", flush=True)
    return found


def speed(options: argparse.Namespace, shape: str, seconds: float) -> dict[str, object]:
    """What engine.py says of a shape; why there is nothing when it says nothing."""
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    command = [sys.executable, str(Path(__file__).with_name("engine.py")), "--json", "--shape", shape]
    command += [
        "--device",
        options.device,
        "--dtype",
        dtype,
        "--output",
        str(options.output),
        "--rounds",
        "1",
    ]
    command += ["--contestants", "in-process"]
    if options.vllm_python:
        command += ["--peer", "gpus", "--vllm-python", options.vllm_python]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"left_out": f"not done in {seconds:.0f} s"}
    if done.returncode:
        return {"left_out": f"engine.py ended with {done.returncode}"}
    print(done.stdout, end="", flush=True)
    said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return said


def machine(device: str) -> str:
    if device != "cuda":
        return f"{torch.get_num_threads()} processors"
    about = torch.cuda.get_device_properties(0)
    return f"{about.name}, {about.total_memory / 2**30:.0f} GiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--shapes", nargs="*", default=["500m", "7b"])
    parser.add_argument("--output", type=int, default=128, help="tokens of each request")
    parser.add_argument("--vllm-python", help="the Python of an environment that has vLLM")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for all of it")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device is available", file=sys.stderr)
        return 2
    began = time.monotonic()
    print(f"{machine(options.device)}, torch {torch.__version__}", flush=True)
    verdicts = check(options.device)
    rates = {}
    for shape in options.shapes:
        left = options.limit - (time.monotonic() - began)
        rates[shape] = (
            speed(options, shape, min(left, LONGEST_SPEED_SECONDS)) if left > 0 else {"left_out": "no time"}
        )
    is_right = all(verdict.is_right for verdict in verdicts.values())
    said = {
        "device": machine(options.device),
        "torch": torch.__version__,
        "right": is_right,
        "checks": {name: [verdict.is_right, verdict.found] for name, verdict in verdicts.items()},
        "speed": rates,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(said))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
