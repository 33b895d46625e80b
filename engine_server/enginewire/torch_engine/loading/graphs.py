"""Which graphs an engine records before its first request, and how CUDA does.

Knows options and models; nothing about requests.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.layers.attention import KvTensors
from enginewire.torch_engine.models.decoder import Model
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.runner.decode_graphs import Compute, GraphedDecode, Record, graph_sizes
from enginewire.torch_engine.runner.fixed_shape import FIXED_ROWS, FixedShape

if TYPE_CHECKING:
    from enginewire.torch_engine.models.huggingface.model import GenericModel

log = logging.getLogger(__name__)

DRAFTED_ROWS = 64
"""Of a step with drafts that a graph computes. In a larger batch they seldom pay."""


def record_decodes(
    options: TorchEngineOptions, model: Model | GenericModel, cache: KvTensors, context_length: int
) -> GraphedDecode | None:
    """Graphs of decode steps; None where there are none, and then steps run without."""
    record = None if options.enforce_eager else graph_recorder(model.embedding.device)
    if record is None or not isinstance(model, Model) or model.reading != "varlen":
        return None
    try:
        return GraphedDecode(model, cache, graph_sizes(_most_rows(options)), context_length, record)
    except RuntimeError as error:
        log.warning("decode steps run without graphs, which is slower: %s", str(error).partition("\n")[0])
        return None


def record_fixed_shape(
    options: TorchEngineOptions, model: Model | GenericModel, cache: KvTensors, context_length: int
) -> FixedShape | None:
    """What batch_invariant needs on a GPU; raises ModelLoadError where it would not hold."""
    if not options.batch_invariant or not isinstance(model, Model) or model.reading != "varlen":
        return None
    record = graph_recorder(model.embedding.device)
    if record is None:
        raise ModelLoadError("batch_invariant needs graphs, which this device does not have")
    try:
        fixed_shape = FixedShape(GraphedDecode(model, cache, [FIXED_ROWS], context_length, record))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ModelLoadError(f"batch_invariant needs graphs, which cannot be recorded: {reason}") from error
    if not fixed_shape.is_invariant(cache.block_size):
        raise ModelLoadError("batch_invariant: on this device a row still depends on the rows beside it")
    return fixed_shape


def _most_rows(options: TorchEngineOptions) -> int:
    """One for each sequence, and for its draft while all of them are few."""
    config, sequences = options.speculative_config, options.max_num_seqs
    drafted = sequences * config.num_speculative_tokens if config else 0
    return max(sequences, min(sequences + drafted, DRAFTED_ROWS))


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
