"""The load of an engine, whoever asked, and the pace at which it is told."""

from __future__ import annotations

from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Seen, loads_of
from enginewire.conformance.running.monitor.invariant import of_calls
from enginewire.conformance.session.sizes import ranks_of, slots_of
from enginewire.conformance.wire.violation import expect, expect_equal

USUAL_INTERVAL_MS: Final = 100

EARLIER: Final = 0.1
"""By which part of an interval a message may come too early: timers and clocks are not the same thing."""

COUNTED: Final = ("step", "preemptions", "requests_finished", "tokens_generated")
"""What is counted since the start."""

SERVING: Final = (pb.ENGINE_STATE_READY, pb.ENGINE_STATE_DRAINING)


@of_calls("HLT-03")
def states_have_names(seen: Seen) -> None:
    """In every load."""
    for load in loads_of(seen.exchange):
        known = load.state and load.state in pb.EngineState.values()
        expect(known, "Load.state is none that the contract names", seen=load.state)


@of_calls("INF-07")
def blocks_add_up(seen: Seen) -> None:
    """Those there are, and never more of them in use."""
    config = seen.info.config
    for load in loads_of(seen.exchange):
        if load.state in SERVING and config.HasField("total_kv_blocks"):
            total = config.total_kv_blocks * len(ranks_of(config))
            expect_equal(load.kv_blocks_total, total, "Load.kv_blocks_total is not that of all ranks")
        if config.HasField("kv_cache_block_size"):
            used, there = load.kv_blocks_used, load.kv_blocks_total
            message = "more KV blocks are in use than there are"
            expect(used <= there or load.state not in SERVING, message, expected=there, seen=used)
            message = "more KV blocks are in use or cached than there are"
            kept = used + load.kv_blocks_cached
            expect(kept <= there or load.state not in SERVING, message, expected=there, seen=kept)


@of_calls("INF-08")
def running_sequences_are_bounded(seen: Seen) -> None:
    """At any time, on each rank and on all together."""
    config = seen.info.config
    if not config.HasField("max_num_seqs"):
        return
    for load in loads_of(seen.exchange):
        most = slots_of(config)
        message = "more sequences run than max_num_seqs allows"
        expect(load.running <= most, message, expected=most, seen=load.running)
        for rank in load.ranks:
            message, most = (
                f"more sequences run on rank {rank.dp_rank} than max_num_seqs",
                config.max_num_seqs,
            )
            expect(rank.running <= most, message, expected=most, seen=rank.running)


@of_calls("INF-13")
def counts_do_not_go_back(seen: Seen) -> None:
    """From one load of a watch to the next, and since the last load before the call, whoever asked for it."""
    before = dict(seen.before)
    for load in loads_of(seen.exchange):
        earlier = before.get(load.engine_lifetime_id, pb.Load())
        for name in COUNTED:
            least, told = getattr(earlier, name), getattr(load, name)
            expect(told >= least, f"Load.{name} went back", expected=f"at least {least}", seen=told)
        before[load.engine_lifetime_id] = load


@of_calls("WLD-03")
def the_load_is_not_told_too_often(seen: Seen) -> None:
    """Since the call began: what is late on its way cannot make this wrong."""
    request = seen.exchange.request
    if not isinstance(request, pb.WatchLoadRequest):
        return
    interval = (request.min_interval_ms if request.HasField("min_interval_ms") else USUAL_INTERVAL_MS) / 1e3
    for number, arrived in enumerate(seen.exchange.arrived):
        passed = arrived.at - seen.exchange.started_at
        least = number * interval * (1 - EARLIER)
        message = f"load {number} of a watch comes too early"
        expect(passed >= least, message, expected=f"after {number * interval:.3f} s", seen=f"{passed:.3f} s")
