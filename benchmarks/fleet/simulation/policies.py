"""How others choose an engine, on what a backend of ours knows: written from their documentation.

- `smg`: the cache-aware policy of the SMG gateway (docs/concepts/routing/cache-aware.md of lightseekorg/smg):
  as long as loads differ by no more than 64 requests or a factor of 1.5, the worker with the longest known
  prefix if that is over 30 % of the prompt, else the one with the fewest requests.
- `gie`: the endpoint picker of the Gateway API inference extension (pkg/epp/scheduling of that repository):
  the highest sum of scores for queue, KV cache in use and prefix, with weights 1, 1 and 3 as in a sample
  configuration; the prefixes of each engine in an LRU list of 31,250 blocks, at most 256 blocks of a prompt.

Prefixes are compared at the same places for all, every 64 tokens behind the first 64.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from enginewire.backend.engines.choice.policy import Policy, PrefixThenLoad
from enginewire.backend.engines.choice.prefix_affinity import COARSE_BLOCKS, PrefixChain
from enginewire.backend.engines.choice.routing_hints import Hints
from enginewire.backend.engines.endpoint import Endpoint


class Simple(Policy[Endpoint]):
    """One that knows nothing of hints and remembers no engine."""

    def end(self, hints: Hints) -> None:
        """Nothing to do."""

    def forget(self, engine: Endpoint) -> None:
        """Nothing to do."""


class RoundRobin(Simple):
    """One after the other."""

    def __init__(self) -> None:
        self._number = 0

    def choose(self, free: Sequence[Endpoint], prefix: PrefixChain, hints: Hints) -> Endpoint:
        """See Policy."""
        self._number += 1
        return free[self._number % len(free)]


class LeastWaiting(Simple):
    """The one with the fewest requests that wait; of several the one with the emptier cache."""

    def choose(self, free: Sequence[Endpoint], prefix: PrefixChain, hints: Hints) -> Endpoint:
        """See Policy."""
        return min(free, key=lambda engine: engine.burden)


class Smg(Simple):
    """Cache-aware, as SMG documents it."""

    CACHE_THRESHOLD: Final = 0.3
    BALANCE_ABS: Final = 64
    BALANCE_REL: Final = 1.5
    MAX_BLOCKS: Final = 2**22

    def __init__(self) -> None:
        self._tree: OrderedDict[int, Endpoint] = OrderedDict()

    def choose(self, free: Sequence[Endpoint], prefix: PrefixChain, hints: Hints) -> Endpoint:
        """See Policy."""
        loads = [engine.in_flight for engine in free]
        most, least = max(loads), min(loads)
        best = free[loads.index(least)]
        if most - least <= self.BALANCE_ABS or most <= self.BALANCE_REL * least:
            matched, engine = self._match(prefix)
            if engine in free and matched > self.CACHE_THRESHOLD * len(prefix):
                best = engine
        for number in prefix:
            self._tree[number] = best
            self._tree.move_to_end(number)
        while len(self._tree) > self.MAX_BLOCKS:
            self._tree.popitem(last=False)
        return best

    def _match(self, prefix: PrefixChain) -> tuple[int, Endpoint | None]:
        for place in range(len(prefix), 0, -1):
            if (engine := self._tree.get(prefix[place - 1])) is not None:
                return place, engine
        return 0, None


class Gie(Simple):
    """Scores that are added up, as the endpoint picker documents them."""

    WEIGHTS: Final = (1.0, 1.0, 3.0)
    MAX_BLOCKS: Final = 256 // COARSE_BLOCKS
    CAPACITY: Final = 31_250 // COARSE_BLOCKS

    def __init__(self) -> None:
        self._of_engine: dict[Endpoint, OrderedDict[int, None]] = {}
        self._engines: dict[int, set[Endpoint]] = {}

    def choose(self, free: Sequence[Endpoint], prefix: PrefixChain, hints: Hints) -> Endpoint:
        """See Policy."""
        prefix = prefix[: self.MAX_BLOCKS]
        matched = self._matches(prefix)
        waiting = [engine.load.waiting for engine in free]
        most, span = max(waiting), max(waiting) - min(waiting)
        queue, kv, cached = self.WEIGHTS
        scores = [
            queue * ((most - number) / span if span else 1.0)
            + kv * (1 - engine.kv_use)
            + cached * matched.get(engine, 0) / max(1, len(prefix))
            for engine, number in zip(free, waiting, strict=True)
        ]
        top = max(scores)
        best = free[random.choice([place for place, score in enumerate(scores) if score == top])]
        self._remember(prefix, best)
        return best

    def _matches(self, prefix: PrefixChain) -> Mapping[Endpoint, int]:
        found: dict[Endpoint, int] = {}
        for number in prefix:
            engines = self._engines.get(number)
            if not engines:
                break
            for engine in engines:
                found[engine] = found.get(engine, 0) + 1
        return found

    def _remember(self, prefix: PrefixChain, engine: Endpoint) -> None:
        known = self._of_engine.setdefault(engine, OrderedDict())
        for number in prefix:
            known[number] = None
            known.move_to_end(number)
            self._engines.setdefault(number, set()).add(engine)
        while len(known) > self.CAPACITY:
            number, _ = known.popitem(last=False)
            self._engines[number].discard(engine)


POLICIES: Final[Mapping[str, Callable[[], Policy[Endpoint]]]] = {
    "ours": PrefixThenLoad,
    "smg": Smg,
    "gie": Gie,
    "least-waiting": LeastWaiting,
    "round-robin": RoundRobin,
}
