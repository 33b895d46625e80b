"""An engine's load report as JSON fields, for pages and scripts. Sans-IO."""

from __future__ import annotations

from enginewire import v1 as pb


def load_fields(target: str, load: pb.Load) -> dict[str, object]:
    """Counts of steps, preemptions, requests and tokens are since the engine's start."""
    return {
        "target": target,
        "state": state_name(load.state),
        "lifetime_id": load.engine_lifetime_id,
        "running": load.running,
        "waiting": load.waiting,
        "waiting_tokens": load.waiting_tokens,
        "kv_blocks_used": load.kv_blocks_used,
        "kv_blocks_cached": load.kv_blocks_cached,
        "kv_blocks_total": load.kv_blocks_total,
        "step": load.step,
        "preemptions": load.preemptions,
        "requests_finished": load.requests_finished,
        "tokens_generated": load.tokens_generated,
    }


def kv_use(load: pb.Load) -> float:
    """The part of the KV blocks that live requests hold, 0 to 1."""
    return load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0


def state_name(state: pb.EngineState.ValueType) -> str:
    """`ready`, `draining` and so on; `unknown` before the first report and for newer ones."""
    if state == pb.ENGINE_STATE_UNSPECIFIED or state not in pb.EngineState.values():
        return "unknown"
    return pb.EngineState.Name(state).removeprefix("ENGINE_STATE_").lower()
