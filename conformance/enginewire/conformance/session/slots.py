"""How many sequences run at the same time, and on which ranks."""

from __future__ import annotations

from enginewire import v1 as pb


def ranks_of(config: pb.EngineConfig) -> range:
    """The data-parallel ranks that are served."""
    first = config.data_parallel_start_rank
    return range(first, first + max(config.data_parallel_size, 1))


def slots_of(config: pb.EngineConfig) -> int:
    """Of all ranks together; 0 where nothing says how many there are."""
    return config.max_num_seqs * len(ranks_of(config))
