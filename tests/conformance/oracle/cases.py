"""A greedy run and an offer that tests of the oracle share, and the cases they draw from them."""

from __future__ import annotations

from enginewire.conformance.oracle.case import Case
from enginewire.conformance.oracle.draw import Offer, draw
from enginewire.conformance.session.context import Greedy

RUNS = (
    Greedy([9, 8, 7], [10, 11, 12, 13, 14, 11, 15, 16]),
    Greedy([5] * 33, [20, 21, 22, 23, 24, 25, 26, 27]),
)
OFFER = Offer(vocab_size=100, eos_token_ids=(2,))


def drawn(count: int, seed: int = 1, offer: Offer = OFFER) -> list[Case]:
    return [draw(seed, number, RUNS, offer) for number in range(1, count + 1)]
