"""Draws cases from a seed. Case 17 of a seed is the same however many are drawn, at the same target."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from enginewire import v1 as pb
from enginewire.conformance.oracle.case import LISTS, Case
from enginewire.conformance.oracle.predict import ending
from enginewire.conformance.session.context import Greedy
from enginewire.conformance.session.sizes import most_choices

MANY = 20
"""Ids of a long list: more than the 16 for which some engines keep a fixed place."""
USUAL_MOST = 256
FINISHED = 0.5
"""How often a resumed choice is, unless no other is left."""
OVER = 0.15
"""How often the last choice has all of its tokens already, and only its end is missing."""
MOST_CHOICES = 3
"""Of a drawn case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a target serves, as far as cases use it."""

    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    most_stop_ids: int = USUAL_MOST
    most_choices: int = MOST_CHOICES
    resume: bool = True
    multiplexed: bool = True
    is_exact: bool = True
    """Tokens do not depend on the batch: `batch_invariant`."""

    @classmethod
    def of(cls, config: pb.EngineConfig) -> Offer:
        """What an engine says of itself."""
        can, limits = config.capabilities, config.limits
        return cls(
            vocab_size=config.vocab_size,
            eos_token_ids=tuple(config.eos_token_ids),
            most_stop_ids=limits.max_stop_token_ids if limits.HasField("max_stop_token_ids") else USUAL_MOST,
            most_choices=1 if config.max_num_seqs == 1 else min(most_choices(config), MOST_CHOICES),
            resume=can.resume,
            multiplexed=can.multiplexed,
            is_exact=can.batch_invariant,
        )


def draw(seed: int, number: int, runs: Sequence[Greedy], offer: Offer) -> Case:
    """Case `number` of a seed."""
    rng = random.Random(f"{seed}/{number}")
    prompt = rng.randrange(len(runs))
    run = runs[prompt]
    place = _place(rng, run.tokens)
    lists = {name: _ids(rng, run, place, offer) for name in LISTS if rng.random() < 0.4}
    longest = _length(rng, place, len(run.tokens))
    case = Case(
        prompt=prompt,
        max_tokens=longest,
        min_tokens=_least(rng, place, longest),
        **lists,
        ignore_eos=rng.random() < 0.2,
        stream_interval=rng.choice((0, 0, 1, 4, 4)),
        n=_choices(rng, offer),
        multiplexed=offer.multiplexed and rng.random() < 0.35,
        is_first=rng.random() < 0.3,
        together=rng.random() < 0.85,
        beyond=0,
    )
    # Of several choices, what was handed in of each is one more condition.
    often = 0.65 if case.n > 1 else 0.35
    return _resumed(rng, case, run, offer) if offer.resume and rng.random() < often else case


def _choices(rng: random.Random, offer: Offer) -> int:
    """One for most cases, and two for most of the others."""
    return min(rng.choice((2, 2, 2, 3)), offer.most_choices) if rng.random() < 0.35 else 1


def _place(rng: random.Random, tokens: Sequence[int]) -> int:
    """Where a token comes for the first time, so that a list with it ends the choice there; often at once."""
    first = [place for place, token in enumerate(tokens) if token not in tokens[:place]]
    return 0 if rng.random() < 0.15 else rng.choice(first)


def _ids(rng: random.Random, run: Greedy, place: int, offer: Offer) -> tuple[int, ...]:
    """The token at `place` or another one; maybe a second one, maybe one twice, maybe many beside it."""
    ids = [run.tokens[place] if rng.random() < 0.7 else rng.choice(run.tokens)]
    if rng.random() < 0.3:
        ids.append(rng.choice(run.tokens))
    if rng.random() < 0.15:
        ids.append(ids[0])
    if rng.random() < 0.35:
        ids = _never(rng, run, offer, rng.choice((2, MANY, MANY))) + ids
        if rng.random() < 0.3:
            rng.shuffle(ids)
    return tuple(ids[max(len(ids) - offer.most_stop_ids, 0) :])


def _never(rng: random.Random, run: Greedy, offer: Offer, count: int) -> list[int]:
    """Ids that the run does not bring."""
    known = set(run.tokens)
    some = rng.sample(range(offer.vocab_size), min(count + len(known), offer.vocab_size))
    return [token for token in some if token not in known][:count]


def _length(rng: random.Random, place: int, most: int) -> int:
    """Often just where a stop is, or one beside it."""
    near = rng.choice((place + 1, place + 1, place + 2, most, most, rng.randint(1, most)))
    return min(near, most)


def _least(rng: random.Random, place: int, longest: int) -> int:
    """Half of the cases have none; the others often have it just where a stop is, or behind it."""
    if rng.random() < 0.5:
        return 0
    near = (place + 1, place + 1, place + 2, place + rng.randint(2, 6), rng.randint(1, longest))
    return min(rng.choice(near), longest)


def _resumed(rng: random.Random, case: Case, run: Greedy, offer: Offer) -> Case:
    """Goes on somewhere before its end, often right before it; unchanged where there is no such place.

    Some choices are finished: those have all their tokens already. So may the last one, and not be finished.
    """
    dues = [ending(case, run.of(index), offer.eos_token_ids) for index in range(case.n)]
    ends = [due.count for due in dues if due and due.count > 1]
    if len(ends) < case.n:
        return case
    count = case.n if rng.random() < 0.5 else 1
    done = [index for index in range(count) if rng.random() < FINISHED][: case.n - 1]
    cuts = [
        end if index in done else rng.choice((end - 1, rng.randint(1, end - 1)))
        for index, end in enumerate(ends[:count])
    ]
    if rng.random() < OVER:
        cuts[-1] = ends[count - 1]
    return replace(case, resumed=tuple(cuts), finished=tuple(done))
