import pytest

from enginewire.backend.decoding.stop_conditions import (
    MAX_STOP_CHARS,
    MAX_STOPS,
    InvalidStopConditions,
    StopConditions,
)


@pytest.mark.parametrize(
    ("conditions", "field"),
    [
        ({"stop": ("a", "")}, "stop_conditions.stop[1]"),
        ({"min_tokens": 3, "max_tokens": 2}, "stop_conditions.min_tokens"),
        ({"min_tokens": -1}, "stop_conditions.min_tokens"),
        ({"max_tokens": 0}, "stop_conditions.max_tokens"),
        ({"stop": ("a",) * (MAX_STOPS + 1)}, "stop_conditions.stop"),
        ({"stop": ("a" * (MAX_STOP_CHARS + 1),)}, "stop_conditions.stop"),
    ],
)
def test_row_14_a_contradiction_is_rejected_with_the_field_named(
    conditions: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidStopConditions) as caught:
        StopConditions(**conditions)  # type: ignore[arg-type]  # wrong on purpose
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


def test_limits_are_inclusive() -> None:
    StopConditions(min_tokens=2, max_tokens=2, stop=("a",) * MAX_STOPS)
    StopConditions(stop=("a" * MAX_STOP_CHARS,))


def test_ignore_eos_ignores_the_ids_of_the_system() -> None:
    ids = {"eos_token_ids": frozenset({1}), "stop_token_ids_hidden": frozenset({2})}
    assert StopConditions(**ids).system_token_ids == {1, 2}
    assert StopConditions(**ids, ignore_eos=True).system_token_ids == set()
