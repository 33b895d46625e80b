"""What vLLM reads of the environment when it is imported. Imports nothing of it."""

from __future__ import annotations

import os
from typing import Final

DEFAULTS: Final = {
    # gRPC does not survive a fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Where our own log is.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # Workers do not end by themselves, and are told to after this time: seconds.
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
    # An allowed host sends nobody to another one.
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    # Nobody is told that vLLM is in use.
    "VLLM_NO_USAGE_STATS": "1",
}
SERVER: Final = "ENGINEWIRE_VLLM_SERVER"
"""Tells vLLM's processes the process id of the server that they belong to."""


def prepare_environment() -> None:
    """Set what the operator has not set."""
    os.environ[SERVER] = str(os.getpid())
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
