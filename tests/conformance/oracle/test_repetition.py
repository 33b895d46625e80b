from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.conformance.oracle.repetition import PERIOD, Repetition, foretold, repetition
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import CAPABILITIES, Settings
from enginewire.conformance.reference.variants.drafting import Drafting
from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.session.context import Context, Greedy
from tests.conformance.judging import judged, made_up

ROUND = [11, 12, 13, 14, 15, 16, 17]


class GoesOn(Drafting):
    """A model that repeats what it has read."""

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[float]:
        logits = super().logits(tokens, adapter)
        if (token := foretold(list(tokens))) is not None:
            logits[token] += 20.0
        return logits


class MayForbidNothing(Drafting):
    settings = replace(Settings(), capabilities=tuple({*CAPABILITIES} - {"bad_words"}))


async def found(make: type[Reference]) -> tuple[list[Repetition], Outcome]:
    """The repetition, if there is one, and what became of a check that asks for it."""
    seen: list[Repetition] = []

    async def look(ctx: Context) -> None:
        seen.append(await repetition(ctx))

    report = await judged(make, [made_up("STR-01", look)])
    return seen, next(outcome for outcome in report.outcomes if outcome.key == "STR-01")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([*ROUND, *ROUND[:5]], 16), ([*ROUND, 9, *ROUND[:5], 8, *ROUND[:5]], 8), (ROUND, None), ([5], None)],
)
def test_what_followed_the_same_tokens_the_last_time_is_foretold(
    tokens: list[int], expected: int | None
) -> None:
    assert foretold(tokens) == expected


def test_an_answer_is_ended_where_a_new_token_is_foretold() -> None:
    assert Repetition(Greedy(2 * ROUND, [*ROUND, *ROUND]), {}).places == [1, 2, 3, 4, 5, 6]
    assert Repetition(Greedy(2 * ROUND, [11, 12, 99, 13, 14]), {}).places == [1]
    assert Repetition(Greedy(2 * ROUND, [99, 98]), {}).places == []


async def test_a_model_that_goes_on_by_itself_needs_no_options() -> None:
    (one,), _ = await found(GoesOn)
    assert one.under == {}
    assert one.greedy.tokens[:PERIOD] == one.greedy.prompt[:PERIOD]


@pytest.mark.parametrize("make", [Reference, Drafting])
async def test_a_model_that_does_not_is_left_no_other_token(make: type[Reference]) -> None:
    (one,), _ = await found(make)
    assert set(one.under) == {"allowed_token_ids", "bad_words_token_ids"}
    assert len(one.places) >= 4


class RefusesThem(Reference):
    """A mistake that has a check of its own."""

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        super().check_gates(request)
        if request.sampling_options.bad_words_token_ids:
            raise Refusal(pb.ERROR_REASON_INVALID_REQUEST, "no bad words today")


async def test_a_request_that_fails_is_no_repetition() -> None:
    seen, outcome = await found(RefusesThem)
    assert (seen, outcome.status) == ([], Status.NOT_APPLICABLE)


async def test_an_engine_whose_answers_cannot_be_made_to_repeat_has_none() -> None:
    seen, outcome = await found(MayForbidNothing)
    assert not seen
    assert outcome.message == "no answer of this model goes on with what its prompt repeats"
