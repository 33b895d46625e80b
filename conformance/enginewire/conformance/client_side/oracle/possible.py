"""Which cases may be played: the engine keeps the contract, but where the case says otherwise. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from enginewire.conformance.client_side.oracle.case import Case
from enginewire.conformance.client_side.oracle.predict import FAILED, Due, outputs, predict
from enginewire.conformance.client_side.oracle.text import NotTold

FAULTS = ("lost", "gap", "repeat", "waits")
"""At most one of them in a case."""


def is_possible(case: Case) -> bool:
    """False for a case that contradicts itself, and where the contract leaves open what has to come of it."""
    try:
        return _is_whole(case) and _is_clear(case, predict(case))
    except NotTold:
        return False


def _is_whole(case: Case) -> bool:
    counts = Counter[int]()
    for index, count in case.messages:
        counts[index] += count
    sizes = {index: len(tokens) for index, tokens in enumerate(case.tokens) if tokens}
    empty = {index for index, tokens in enumerate(case.tokens) if not tokens}
    return (
        len(case.ends) == case.n > 0
        and dict(counts) == sizes
        and min((count for _, count in case.messages), default=1) > 0
        and empty <= set(case.apart) <= set(range(case.n))
        and all(case.stop)
        and case.min_tokens <= case.max_tokens
        and sum(getattr(case, name) not in (None, False) for name in FAULTS) < 2
    )


def _is_clear(case: Case, due: Sequence[Due]) -> bool:
    if case.n > 1 and set(case.ends) & set(FAILED):
        return False  # whether one failure ends its siblings is another question
    if "CANCELLED" in case.ends and (case.refusals or case.lost_at is not None):
        return (
            False  # each attempt meets another life of the engine, and that is how one looks that goes away
        )
    if case.waits:
        return not any(each.needs_engine for each in due)
    sent = outputs(case)
    if (lost := case.lost_at) is not None:
        is_over = all(each.message < lost for each in due)
        if lost >= len(sent) or is_over or any(each.count > case.max_tokens for each in due):
            return False
    broken = case.gap if case.gap is not None else case.repeat
    if broken is None:
        return True
    if broken >= len(sent):
        return False
    index, count, _ = sent[broken]
    before = sum(size for other, size, _ in sent[:broken] if other == index)
    return due[index].message >= broken and count > 0 and (case.repeat is None or before > 0)
