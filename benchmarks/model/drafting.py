"""What drafts by prompt lookup save: processor time per decoded token without and with them.

    python benchmarks/model/drafting.py [--shape 15m|110m] [--dtype float32|bfloat16] [--output 97]
        [--rounds 3]

Both engines are in this process, with one thread each, and take turns: processor time says something on a
machine with other work, where the clock does not. The cases are those of `engine.py --repeating`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from contestants import make_request
from workloads import Job, make_model, misleading, repeating, static_batch

from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.core import EngineCore
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import SpeculativeConfig, TorchEngineOptions
from enginewire.torch_engine.requests.limits import RequestLimits
from enginewire.torch_engine.requests.reader import RequestReader

PROMPT = 128
CASES = {"repeats": repeating, "differs": static_batch, "misleads": misleading}


class Engine:
    """A core and what reads requests for it."""

    def __init__(
        self, model: Path, dtype: str, config: SpeculativeConfig | None, quantization: str = "none"
    ) -> None:
        options = TorchEngineOptions(
            model=str(model),
            device="cpu",
            dtype=dtype,
            quantization=quantization,
            num_threads=1,
            num_kv_blocks=2048,
            speculative_config=config,
        )
        loaded = load_engine(options, lambda phase, done: None)
        self._core: EngineCore = loaded.core
        limits = RequestLimits(
            loaded.config.vocab_size, loaded.context_length, loaded.core.scheduler.pool.capacity
        )
        self._reader = RequestReader(limits, loaded.defaults, 0)

    def run(self, jobs: list[Job]) -> float:
        """Processor milliseconds per token, after every request had its first."""
        for number, job in enumerate(jobs):
            context = GenerateContext(f"r{number}")
            self._core.add(self._reader.read(make_request(job), context, float(number)))
        while self._core.scheduler.waiting or any(
            each.num_output_tokens == 0 for each in self._core.scheduler.running
        ):
            self._core.step()
        left = sum(job.num_output for job in jobs)
        left -= sum(each.num_output_tokens for each in self._core.scheduler.running)
        begin = time.process_time()
        while self._core.has_work:
            self._core.step()
            assert not self._core.take_outputs().failures
        return (time.process_time() - begin) / left * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=["15m", "110m"], default="15m")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--output", type=int, default=97)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    config = SpeculativeConfig(8, prompt_lookup_min=2, prompt_lookup_max=4)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model, options.shape, options.dtype, counts=True)
        engines = [Engine(model, options.dtype, each) for each in (None, config)]
        found: dict[tuple[str, int], list[list[float]]] = {}
        for _ in range(options.rounds):
            for size in options.sizes:
                for case, make in CASES.items():
                    jobs = make(size, PROMPT, options.output)
                    found.setdefault((case, size), []).append([engine.run(jobs) for engine in engines])
    for (case, size), rounds in found.items():
        plain, drafting = map(statistics.median, zip(*rounds, strict=True))
        figures = f"{plain:6.2f} -> {drafting:6.2f} ms of processor time per token ({plain / drafting:.2f} x)"
        print(f"{case:<9}{size:3}  {figures}", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
