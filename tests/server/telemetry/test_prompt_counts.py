from __future__ import annotations

from enginewire import v1 as pb
from enginewire.metrics.stats_line import Seen
from enginewire.server.telemetry.prompt_counts import PromptCounts


def test_prompts_count_when_their_requests_have_ended() -> None:
    counts = PromptCounts()
    for cached in (50, 0):
        usage = pb.CompletionUsage(prompt_tokens=100)
        usage.prompt_tokens_details.cached_tokens = cached
        counts.ended(None, usage, None)  # type: ignore[arg-type]  # nobody looks at the request
    load = pb.Load(tokens_generated=7, running=2, waiting=1, kv_blocks_used=1, kv_blocks_total=8)
    assert counts.seen_with(load) == Seen(
        prompt_tokens=200, cached_tokens=50, generated_tokens=7, running=2, waiting=1, kv_use=0.125
    )
    assert counts.seen_with(pb.Load()).kv_use == 0
