"""CUDA graphs behind the one function that `GraphedDecode` asks for. Knows nothing about models."""

from __future__ import annotations

import torch
from torch import Tensor

from enginewire.torch_engine.runner.decode_graphs import Compute, Record


def graph_recorder(device: torch.device) -> Record | None:
    """Records on `device`; None where there are no graphs."""
    return CudaRecorder() if device.type == "cuda" else None


class CudaRecorder:
    """Records graphs that share their memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types for it

    def __call__(self, compute: Compute) -> Compute:
        """See `Record`. Runs `compute` twice: libraries choose kernels and take memory at a first call.

        All on one stream: cuBLAS keeps a workspace for every stream it has seen. It is entered here, so that
        it is left even when a recording breaks, after which `torch.cuda.graph` may not leave it.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            compute()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay
