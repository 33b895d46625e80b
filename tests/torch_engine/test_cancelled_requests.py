"""Nothing of a cancelled request stays."""

from __future__ import annotations

import gc
from collections import Counter

from tests.torch_engine.tiny import CoreUnderTest, greedy


def cancel_many(engine: CoreUnderTest, numbers: range) -> None:
    """Cancel requests that wait, whose prompt is computed, and that answer."""
    for number in numbers:
        context = engine.add(greedy([number % 190 + 2, *range(2, 30)], 20, n=1 + number % 2))
        for _ in range(number % 4):
            engine.step()
        engine.core.live.abort(context)
        engine.run()
        engine.core.scheduler.prefix_cache.take_changes()  # as the step thread does
        del engine.answers[context]


def objects() -> Counter[str]:
    gc.collect()
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())


def test_cancelled_requests_leave_no_objects(load):
    engine = load("llama", num_kv_blocks=32, block_size=4)
    cancel_many(engine, range(200))
    before = objects()
    cancel_many(engine, range(200, 500))
    grown = {name: count for name, count in (objects() - before).items() if count >= 100}
    assert not grown
