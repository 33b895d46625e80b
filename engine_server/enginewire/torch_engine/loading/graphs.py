"""Which graphs an engine records before its first request.

Knows options and models; nothing about requests.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.layers.attention import KvTensors
from enginewire.torch_engine.models.decoder import Model
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.runner.cuda_graphs import graph_recorder
from enginewire.torch_engine.runner.decode_graphs import GraphedDecode, graph_sizes
from enginewire.torch_engine.runner.fixed_shape import FIXED_ROWS, FixedShape

if TYPE_CHECKING:
    from enginewire.torch_engine.models.huggingface.model import GenericModel

log = logging.getLogger(__name__)


def record_decodes(
    options: TorchEngineOptions, model: Model | GenericModel, cache: KvTensors, context_length: int
) -> GraphedDecode | None:
    """Graphs of decode steps; None where there are none, and then steps run without."""
    record = graph_recorder(model.embedding.device)
    if record is None or not isinstance(model, Model) or model.reading != "varlen":
        return None
    try:
        return GraphedDecode(model, cache, graph_sizes(options.max_num_seqs), context_length, record)
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
