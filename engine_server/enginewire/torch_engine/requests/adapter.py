"""A loaded adapter as requests hold it. Whoever computes with it finds its weights here.

Knows nothing about files; holds torch's tensors without entering torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginewire.torch_engine.lora.projections import LowRanks


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """`digest` stands for the content: under another one the same name is another adapter."""

    name: str
    digest: str
    low_ranks: LowRanks

    @property
    def identity(self) -> str:
        """Name and content: both make it the adapter that it is."""
        return f"{self.name}\0{self.digest}"
