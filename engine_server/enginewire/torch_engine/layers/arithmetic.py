"""The kernels and products that compute a model of our own code.

Knows nothing about how they are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

from enginewire.torch_engine.layers.linear import MakeLinear
from enginewire.torch_engine.layers.ops import LayerOps


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`project` makes the projections of the layers, and the one that gives logits."""

    ops: LayerOps
    project: MakeLinear
