"""Loads that cannot be."""

from __future__ import annotations

from collections.abc import Sequence

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.running.monitor.cases.register import breaks
from tests.conformance.running.monitor.made import called


def load(**fields: object) -> pb.Load:
    """An idle load with some numbers changed."""
    made = pb.Load(state=pb.ENGINE_STATE_READY, kv_blocks_total=8)
    made.MergeFrom(pb.Load(**fields))  # type: ignore[arg-type]  # what a test needs
    return made


def told(one: pb.Load) -> Exchange:
    """A GetLoad."""
    return called("DiscoveryService.GetLoad", pb.GetLoadRequest(), pb.GetLoadResponse(load=one))


def watched(gap: float, steps: Sequence[int] = range(8), **asked: int) -> Exchange:
    """A WatchLoad with a load every `gap` seconds."""
    answers = [pb.WatchLoadResponse(load=load(step=step)) for step in steps]
    return called("DiscoveryService.WatchLoad", pb.WatchLoadRequest(**asked), *answers, gap=gap)


breaks("states_have_names", "none")(lambda: told(pb.Load(kv_blocks_total=8)))
breaks("blocks_add_up", "other blocks")(lambda: told(load(kv_blocks_total=9)))
breaks("blocks_add_up", "more in use")(lambda: told(load(kv_blocks_used=9)))
breaks("blocks_add_up", "more in use and cached")(lambda: told(load(kv_blocks_used=5, kv_blocks_cached=4)))
breaks("running_sequences_are_bounded", "five")(lambda: told(load(running=5)))
breaks("counts_do_not_go_back", "a step back")(lambda: watched(1.0, (3, 4, 2)))
breaks("the_load_is_not_told_too_often", "twice as often")(lambda: watched(0.05, min_interval_ms=100))
