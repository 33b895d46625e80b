"""What our kernels for few rows save: processor time per decoded token with oneDNN's products and with ours.

    python benchmarks/model/few_rows.py [--shape 15m|110m] [--dtype float32|bfloat16]
        [--quantization none|int8] [--sizes 1 4 8 16] [--output 17] [--rounds 5]

Both engines are in this process, with one thread each, and take turns, as in `drafting.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from unittest.mock import patch

from drafting import PROMPT, Engine
from workloads import make_model, static_batch

from enginewire.torch_engine.loading import kernel_choice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=["15m", "110m"], default="110m")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--quantization", choices=["none", "int8"], default="none")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--output", type=int, default=17)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model, options.shape, options.dtype, counts=True)
        with patch.object(kernel_choice, "quick_with_few_rows", lambda base, weight: base):
            theirs = Engine(model, options.dtype, None, options.quantization)
        ours = Engine(model, options.dtype, None, options.quantization)
        for size in options.sizes:
            jobs = static_batch(size, PROMPT, options.output)
            rounds = [(theirs.run(jobs), ours.run(jobs)) for _ in range(options.rounds)]
            before, now = map(statistics.median, zip(*rounds, strict=True))
            figures = f"{before:6.2f} -> {now:6.2f} ms of processor time per token ({before / now:.2f} x)"
            print(f"batch {size:3}  {figures}", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
