"""What grammars cost with a vocabulary of 151,936 byte-level tokens, for each grammar library.

    python benchmarks/model/guided.py [--json]

The vocabulary is made up: all bytes, and pieces of words, numbers and punctuation of every length.
"Compile" is what a request waits for: limits, the fork, and the grammar's way back. "Mask" and "accept" are
the processor time of the step thread per token of one choice. The step is what `sample` does to a batch whose
logits are given: 32 rows, of which none, half or all follow a JSON schema. No model runs. The last line with
--json has all figures.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

import torch

from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.guided.compiler import GrammarCompiler
from enginewire.torch_engine.guided.library import KINDS, Vocabulary
from enginewire.torch_engine.guided.matcher import CompiledGuide
from enginewire.torch_engine.requests.params import Guide, SamplingParams, StopRules
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.sampling.sampler import sample

VOCAB_SIZE = 151_936
EOS = 0
ROWS = 32
STEPS = 10
TOKENS = 40
ALPHABET = [*b"etaoinshrdlucmfwypvbgkqjxz" * 3, *b'ETAOIN 0123456789 _-".,:{}[]()/\n']
PROPERTIES = {
    "name": {"type": "string"},
    "age": {"type": "integer"},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
}
SCHEMA = json.dumps({"type": "object", "properties": PROPERTIES, "required": list(PROPERTIES)})
GUIDES = {
    "json_schema": Guide("json_schema", SCHEMA),
    "json_object": Guide("json_object"),
    "regex": Guide("regex", r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2} [a-z]+"),
    "choice": Guide("choice", json.dumps([f"choice number {i}" for i in range(100)])),
}


def vocabulary() -> Vocabulary:
    source = random.Random(0)
    tokens = dict.fromkeys(bytes([byte]) for byte in range(256))
    while len(tokens) < VOCAB_SIZE - 1:
        piece = bytes(source.choices(ALPHABET, k=source.randint(2, 9)))
        tokens[b" " + piece if source.random() < 0.4 else piece] = None
    return Vocabulary((b"", *tokens), (EOS,))


def timed(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    action()
    return clock() - started


def follow(guide: CompiledGuide) -> tuple[list[float], list[float]]:
    """Processor seconds of every mask and of every accepted token of one random output."""
    source = torch.Generator().manual_seed(0)
    matcher = guide.start([EOS])
    mask = torch.zeros(1, -(-VOCAB_SIZE // 32), dtype=torch.int32)
    masks: list[float] = []
    accepts: list[float] = []
    while len(masks) < TOKENS and not matcher.is_over:
        masks.append(timed(lambda: matcher.fill(mask, 0), time.thread_time))
        bits = (mask[0][:, None] >> torch.arange(32, dtype=torch.int32)) & 1
        allowed = bits.flatten().nonzero().flatten()
        choice = int(allowed[int(torch.randint(len(allowed), (1,), generator=source))])
        accepts.append(timed(lambda token=choice: matcher.accept(token), time.thread_time))
    return masks, accepts


def step_seconds(guide: CompiledGuide, guided_rows: int) -> float:
    """The median time to choose the next token of every row."""
    request = Request(GenerateContext("r"), [1], SamplingParams(seed=0), StopRules(9999), (0, 0.0, 0))
    sequences = [Sequence(request, row) for row in range(ROWS)]
    for sequence in sequences[:guided_rows]:
        sequence.matcher = guide.start([EOS])
    logits = torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    return statistics.median(timed(lambda: sample(logits.clone(), sequences).read()) for _ in range(STEPS))


def measure(name: str, known: Vocabulary) -> dict[str, float]:
    started = time.perf_counter()
    compiler = GrammarCompiler(name, known)
    found = {"start_ms": (time.perf_counter() - started) * 1e3}
    found["first_compile_ms"] = timed(lambda: compiler.compile(Guide("regex", "x")).result()) * 1e3
    for kind, guide in GUIDES.items():
        found[f"{kind}_compile_ms"] = timed(lambda guide=guide: compiler.compile(guide).result()) * 1e3
        masks, accepts = follow(compiler.compile(guide).result())
        found[f"{kind}_mask_us"] = statistics.mean(masks) * 1e6
        found[f"{kind}_mask_max_us"] = max(masks) * 1e6
        found[f"{kind}_accept_us"] = statistics.mean(accepts) * 1e6
    schema = compiler.compile(GUIDES["json_schema"]).result()
    for rows in (0, ROWS // 2, ROWS):
        found[f"step_{rows}_of_{ROWS}_ms"] = step_seconds(schema, rows) * 1e3
    compiler.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="print all figures as JSON in the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = vocabulary()
    found = {name: measure(name, known) for name in KINDS}
    for figure in next(iter(found.values())):
        print(f"{figure:28}", *(f"{name} {figures[figure]:10.2f}" for name, figures in found.items()))
    if arguments.json:
        flat = {f"{name}_{key}": value for name, figures in found.items() for key, value in figures.items()}
        print(json.dumps({key: round(value, 3) for key, value in flat.items()}))


if __name__ == "__main__":
    main()
