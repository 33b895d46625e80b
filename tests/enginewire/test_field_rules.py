"""How options of the contract are read."""

from __future__ import annotations

import math

import pytest

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES, UNBOUNDED, rules_of


@pytest.mark.parametrize(
    ("path", "holds", "does_not", "words"),
    [
        ("sampling_options.top_p", (5e-324, 1.0), (0.0, -0.1, 1.0001, math.nan), "(0, 1]"),
        ("sampling_options.min_p", (0.0, 1.0), (-0.1, 1.1, math.inf), "[0, 1]"),
        ("stop_conditions.max_tokens", (1, 2**32 - 1), (0,), "[1, inf)"),
        ("sampling_options.top_k", (-1, 2**31 - 1), (-2,), "[-1, inf)"),
    ],
)
def test_a_range_holds_up_to_its_ends(
    path: str, holds: tuple[float, ...], does_not: tuple[float, ...], words: str
) -> None:
    rule = FIELD_RULES[path]
    assert rule.has_range
    assert [value for value in holds if not rule.holds(value)] == []
    assert [value for value in does_not if rule.holds(value)] == []
    assert rule.range == words


def test_a_field_without_an_option_takes_everything() -> None:
    rule = FIELD_RULES["cache_salt"]
    assert not rule.has_range
    assert rule.bound == UNBOUNDED


@pytest.mark.parametrize(
    ("path", "nothing", "something"),
    [
        ("sampling_options.n", 1, 2),
        ("sampling_options.use_beam_search", False, True),
        ("routing.priority_jump", 0.0, -1.0),
        ("routing.lora_name", "", "a"),
    ],
)
def test_one_value_asks_for_nothing(path: str, nothing: object, something: object) -> None:
    assert not FIELD_RULES[path].asks(nothing)
    assert FIELD_RULES[path].asks(something)


def test_without_such_a_value_every_one_asks() -> None:
    assert FIELD_RULES["sampling_options.seed"].asks(0)


def test_a_field_has_the_class_of_its_message_unless_it_has_one_of_its_own() -> None:
    assert FIELD_RULES["stop_conditions.max_tokens"].field_class == pb.FIELD_CLASS_ENGINE
    assert FIELD_RULES["stop_conditions.stop"].field_class == pb.FIELD_CLASS_BACKEND
    assert FIELD_RULES["routing.session_control.session_id"].field_class == pb.FIELD_CLASS_OPAQUE


def test_a_path_through_a_list_stands_for_each_entry() -> None:
    assert FIELD_RULES["sampling_options.logit_bias.bias"].is_in_list
    assert not FIELD_RULES["sampling_options.logit_bias"].is_in_list


def test_another_message_has_rules_of_its_own() -> None:
    assert rules_of(pb.PreprocessedEmbeddingRequest.DESCRIPTOR)["dimensions"].min == 1


def test_the_rules_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        FIELD_RULES["model"] = FIELD_RULES["token_ids"]  # type: ignore[index]  # that is the point


def test_an_engine_may_name_another_bound_and_only_with_its_limit() -> None:
    rule = FIELD_RULES["sampling_options.n"]
    assert rule.most(pb.Limits(max_logprobs=3)) == rule.bound
    assert rule.most(pb.Limits(max_n=3)) == 3
    assert FIELD_RULES["annotations"].most(pb.Limits(max_n=3)) == FIELD_RULES["annotations"].bound


def test_a_number_without_a_bound_may_be_the_largest_there_is() -> None:
    assert FIELD_RULES["sampling_options.seed"].most(pb.Limits()) >= 2**64 - 1
