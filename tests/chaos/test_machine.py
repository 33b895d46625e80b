"""A few short schedules of faults; `make chaos` tries longer ones, and more of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.chaos.machine import Stage, Trouble
from tests.long import long


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        Trouble.stage = made
        yield made


@long
def test_whatever_happens_to_engines_and_links_every_answer_is_right(stage: Stage) -> None:
    # The same schedules each time: new ones are for `make chaos`.
    run = settings(max_examples=4, stateful_step_count=6, derandomize=True, database=None, deadline=None)
    run_state_machine_as_test(Trouble, settings=settings(run, phases=[Phase.generate]))
    assert stage.num_schedules == 4
    assert stage.world.num_migrations >= 4
