"""Applies every invariant to every exchange of a run, once, and keeps what was found.

Knows nothing about checks but their names, which say whose traffic it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Final, TypeVar
from weakref import WeakSet

from enginewire import v1 as pb
from enginewire.conformance.running.monitor import (
    accepted,
    calls,
    endings,
    extras,
    failures,
    frames,
    load,
    logprobs,
    masks,
    shape,
    streams,
    usage,
)
from enginewire.conformance.running.monitor.facts import (
    Answer,
    Failure,
    Seen,
    failure_of,
    of_generate,
    with_loads_before,
)
from enginewire.conformance.running.monitor.handles import (
    Handles,
    answers_of,
    failures_of,
    handles_of,
    is_multiplexed,
)
from enginewire.conformance.running.monitor.invariant import ANSWERS, CALLS, FAILURES, STREAMS, Invariant
from enginewire.conformance.wire.exchange import Exchange

T = TypeVar("T")

MODULES: Final[Sequence[ModuleType]] = (
    shape,
    accepted,
    endings,
    usage,
    logprobs,
    masks,
    extras,
    failures,
    frames,
    load,
    calls,
    streams,
)
"""Importing one of them adds its invariants. They are applied in this order: what others need comes first."""

_PLACES: Final = {module.__name__: place for place, module in enumerate(MODULES)}
KINDS: Final = (ANSWERS, FAILURES, CALLS, STREAMS)
for _kind in KINDS:
    _kind.sort(key=lambda invariant: _PLACES[invariant.function.__module__])

NOTHING: Final[Mapping[str, pb.Load]] = MappingProxyType({})

SHARED: Final = "what the checks share"
"""Whose traffic it is that no check shows: measurements and observations made once."""


def watched_ids() -> frozenset[str]:
    """The ids of which the monitor may say something."""
    return frozenset(invariant.id for kind in KINDS for invariant in kind)


def stands_on(identifier: str) -> tuple[str, ...]:
    """The ids whose checks have to hold, or what is seen of this one says nothing."""
    own = (invariant for kind in KINDS for invariant in kind if invariant.id == identifier)
    return tuple(sorted({need for invariant in own for need in invariant.needs} - {identifier}))


@dataclass(slots=True)
class Finding:
    """What was seen first of one id, in whose traffic, and how often something of that id was seen.

    `problem`: a Violation, or a fault of the invariant.
    """

    id: str
    problem: Exception
    exchange: Exchange
    check: str
    count: int = 1


@dataclass(slots=True)
class Monitor:
    """Looks at the exchanges of one run. `watched`: how many there were."""

    findings: dict[str, Finding] = field(default_factory=dict)
    watched: int = 0
    _known: WeakSet[Exchange] = field(default_factory=WeakSet)
    """Seen before, and still in somebody's hands: those that showed nothing wrong are not kept."""

    def watch(
        self, check: str, exchanges: Iterable[Exchange], info: pb.GetEngineInfoResponse, target: str
    ) -> None:
        """Look at exchanges that nobody adds to any more. `info`: what the server at `target` said it is."""
        for exchange, before in with_loads_before(exchanges):
            if exchange in self._known:
                continue
            self._known.add(exchange)
            self.watched += 1
            told = info if exchange.target == target else pb.GetEngineInfoResponse()
            for identifier, problem in problems(exchange, told, before):
                self._found(Finding(identifier, problem, exchange, check))

    def _found(self, finding: Finding) -> None:
        if earlier := self.findings.get(finding.id):
            earlier.count += 1
        else:
            self.findings[finding.id] = finding


def problems(
    exchange: Exchange, info: pb.GetEngineInfoResponse, before: Mapping[str, pb.Load] = NOTHING
) -> Iterator[tuple[str, Exception]]:
    """Everything that is wrong with one exchange, by id. `before`: loads as Seen has them."""
    seen = Seen(exchange, info, before)
    yield from _broken(CALLS, seen)
    # Once: whoever looks at a stream looks at the same uses.
    handles = handles_of(exchange, info.config) if is_multiplexed(exchange) else None
    yield from _broken(STREAMS, handles) if handles else ()
    answers, failed = _taken_apart(seen, handles)
    for answer in answers:
        yield from _broken(ANSWERS, answer)
    for failure in failed:
        yield from _broken(FAILURES, failure)


def _taken_apart(seen: Seen, handles: Handles | None) -> tuple[list[Answer], list[Failure]]:
    exchange = seen.exchange
    whole = failure_of(exchange, is_known=bool(seen.info.ByteSize()))
    failed = [whole] if whole else []
    if handles:
        if handles.unreadable:
            return [], failed
        return list(answers_of(handles)), [*failed, *failures_of(handles)]
    answer = of_generate(exchange, seen.info.config)
    return [answer] if answer else [], failed


def _broken(invariants: Iterable[Invariant[T]], thing: T) -> Iterator[tuple[str, Exception]]:
    """What does not hold, but for what stands on something that does not hold or cannot be told."""
    broken: set[str] = set()
    for invariant in invariants:
        if not broken.isdisjoint(invariant.needs):
            broken.add(invariant.id)
            continue
        try:
            invariant.function(thing)
        except Exception as problem:  # noqa: BLE001  # a fault of one invariant must not end the run
            broken.add(invariant.id)
            # Its frames would hold all that was looked at.
            yield invariant.id, problem.with_traceback(None)
