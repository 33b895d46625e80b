from __future__ import annotations

from enginewire.conformance.session.bounds import Bounds


def test_a_request_lasts_however_fast_the_target_turns_out_to_be() -> None:
    assert Bounds(itl=0.5, least_itl=0.001).tokens_in(1.0) == 1000


def test_a_generation_has_at_least_the_patience_of_a_unary_call() -> None:
    assert Bounds().generation(1) >= 2 * Bounds().answer


def test_a_stall_while_measuring_only_widens_the_bounds() -> None:
    assert Bounds(itl=0.5, least_itl=0.001).reaction == Bounds(itl=0.5).reaction == 10.0


def test_a_target_that_was_not_measured_counts_as_a_fast_one() -> None:
    assert Bounds().tokens_in(0.3) == 15_000
    assert Bounds(least_itl=2.0).tokens_in(0.3) == 1
