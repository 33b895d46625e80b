from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.session.company import (
    ALONE,
    FULL,
    HINTS,
    JOINS,
    MEMBERS,
    MULTIPLEXED,
    NEW_FIELD,
    PROBE,
    UNREAD,
    Company,
    draw,
)
from enginewire.conformance.session.requests import change, good_request, path_of
from enginewire.field_rules import FIELD_RULES

PLAIN = good_request("r", [5, 6, 7])
EVERYBODY = Company(tuple(JOINS), tuple(range(20)), (9, 9))

ALSO = {"temperature": "top_k"}
"""A member that sets a second field."""


def value_of(request: pb.GenerateRequest, name: str) -> object:
    value: object = request.request
    for part in path_of(name).split("."):
        value = getattr(value, part)
    return value


def test_without_company_a_request_is_sent_as_it_is() -> None:
    assert ALONE.joined(PLAIN) is PLAIN


@pytest.mark.parametrize("member", [member for member in JOINS if member != UNREAD])
def test_each_member_sets_its_field_and_no_other(member: str) -> None:
    joined = Company((member,), (3, 4), (9, 9)).joined(PLAIN)
    assert value_of(joined, member) != value_of(PLAIN, member)
    fields = dict.fromkeys([member, ALSO.get(member, member)])
    assert change(joined, **fields) == change(PLAIN, **fields)


@pytest.mark.parametrize("member", [member for member in JOINS if member != UNREAD])
def test_what_a_request_says_itself_stays(member: str) -> None:
    said = Company((member,), (3, 4), (9, 9)).joined(PLAIN)
    assert Company((member,), (9,), (9, 9)).joined(said) == said


def test_what_no_engine_reads_is_of_a_newer_contract_or_opaque() -> None:
    joined = Company((UNREAD,)).joined(PLAIN)
    assert joined.SerializeToString().count(NEW_FIELD) == 3
    joined.DiscardUnknownFields()
    hints = {field.name: None for field, _ in HINTS.ListFields()}
    paths = {*hints, *(f"routing.{field.name}" for field, _ in HINTS.routing.ListFields())}
    assert {FIELD_RULES[path].field_class for path in paths} == {pb.FIELD_CLASS_OPAQUE}
    left = change(joined, **hints)
    assert left.SerializeToString() == change(PLAIN, stream_interval=None).SerializeToString()


def test_hints_of_the_request_itself_stay() -> None:
    said = change(PLAIN, priority=3, routing_key="its own", request_timestamp_ms=7)
    joined = Company((UNREAD,)).joined(said).request
    seen = joined.routing.priority, joined.routing.routing_key, joined.request_timestamp_ms
    assert seen == (3, "its own", 7)
    assert joined.agent_context.session_id == "company"


def test_nothing_ends_an_answer_where_eos_counts_or_a_guide_does() -> None:
    hidden = Company(("stop_token_ids_hidden",), (3, 4))
    assert list(hidden.joined(PLAIN).request.stop_conditions.stop_token_ids_hidden) == [3, 4]
    guided = change(PLAIN, guided_decoding=pb.GuidedDecoding(regex="a"))
    for other in (change(PLAIN, ignore_eos=False), guided):
        assert hidden.joined(other) == other


def test_a_filter_comes_along_where_the_most_probable_token_is_due() -> None:
    filters = Company(("top_p", "min_p"))
    assert filters.joined(PLAIN).request.sampling_options.top_p == 0.5
    hot = change(PLAIN, temperature=1.0)
    assert filters.joined(hot) == hot
    assert filters.joined(change(hot, top_k=1)).request.sampling_options.min_p == 0.5


def test_a_full_engine_is_for_those_that_say_how_full_they_can_be() -> None:
    can = pb.Capabilities(multiplexed=True)
    for slots, is_there in ((0, False), (1, True), (64, True), (65, False)):
        config = pb.EngineConfig(vocab_size=9, capabilities=can, max_num_seqs=slots)
        members = {member for number in range(8) for member in draw(1, number, config).members}
        assert MULTIPLEXED in members
        assert (FULL in members) is is_there


@pytest.mark.parametrize(("ranks", "is_there"), [(1, True), (2, True), (4, False)])
def test_a_full_engine_has_its_slots_on_all_ranks(ranks: int, is_there: bool) -> None:
    can = pb.Capabilities(multiplexed=True, data_parallel=True)
    config = pb.EngineConfig(vocab_size=9, capabilities=can, max_num_seqs=32, data_parallel_size=ranks)
    members = {member for number in range(8) for member in draw(1, number, config).members}
    assert (FULL in members) is is_there


def test_nobody_ends_an_answer_that_would_go_on() -> None:
    open_ended = change(PLAIN, ignore_eos=False, max_tokens=1)
    conditions = EVERYBODY.joined(open_ended).request
    assert not conditions.eos_token_ids
    assert not conditions.stop_conditions.HasField("min_tokens")
    assert EVERYBODY.joined(change(PLAIN, max_tokens=1)).request.stop_conditions.min_tokens == 1
    stopped = change(PLAIN, stop_token_ids=[7])
    assert not EVERYBODY.joined(stopped).request.stop_conditions.HasField("min_tokens")


def test_a_second_choice_and_a_resumed_one_do_not_meet_by_accident() -> None:
    resumed = change(PLAIN, resume=pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[5])], attempt=1))
    assert EVERYBODY.joined(resumed).request.sampling_options.n == 0
    assert EVERYBODY.joined(resumed).request.resume == resumed.request.resume
    assert EVERYBODY.joined(change(PLAIN, best_of=1)).request.sampling_options.n == 0


def test_all_prompts_begin_the_same_where_there_is_room() -> None:
    asked = len(PLAIN.request.token_ids) + PLAIN.request.stop_conditions.max_tokens
    company = Company(("token_ids",), (), (9, 9), asked + 2)
    assert list(company.joined(PLAIN).request.token_ids) == [9, 9, 5, 6, 7]
    for other in (
        change(PLAIN, max_tokens=asked),
        change(PLAIN, max_tokens=None),
        change(PLAIN, token_ids=[]),
    ):
        assert company.joined(other) == other


def test_what_an_engine_does_not_offer_does_not_come_along() -> None:
    modest = pb.EngineConfig(vocab_size=3, limits=pb.Limits(max_stop_token_ids=2))
    companies = [draw(1, number, modest) for number in range(200)]
    assert {member for company in companies for member in company.members} == {
        "eos_token_ids",
        "min_tokens",
        "stop_token_ids_hidden",
        "stream_interval",
        "temperature",
        "top_p",
        "token_ids",
        "cache_salt",
        "annotations",
        "request_id",
        "metadata",
        "client_revision",
        UNREAD,
        PROBE,
    }
    assert all(company.members and max(company.some_ids) < 3 for company in companies)


def test_alternatives_do_not_come_along_where_none_are_allowed() -> None:
    limits = pb.Limits(max_logprobs=0)
    none = pb.EngineConfig(vocab_size=9, capabilities=pb.Capabilities(logprobs=True), limits=limits)
    assert not any("logprobs" in draw(1, number, none).members for number in range(50))
    limits.max_logprobs = 1
    none.limits.CopyFrom(limits)
    assert any("logprobs" in draw(1, number, none).members for number in range(50))


def test_the_companies_of_a_seed_are_the_same_again_and_those_of_another_are_others() -> None:
    config = Reference().config
    first = [draw(1, number, config) for number in range(8)]
    assert first == [draw(1, number, config) for number in range(8)]
    assert first != [draw(2, number, config) for number in range(8)]
    assert len({company.members for company in first}) > 4


def test_who_is_not_in_one_company_is_in_the_other_of_its_pair() -> None:
    config = Reference().config
    for even in range(0, 8, 2):
        one, other = draw(1, even, config), draw(1, even + 1, config)
        assert not set(one.members) & set(other.members)
        assert set(one.members) | set(other.members) == set(MEMBERS)


def test_a_second_choice_does_not_come_along_where_there_is_one() -> None:
    can = pb.Capabilities(multiple_choices=True)
    for most, is_there in ((1, False), (2, True)):
        config = pb.EngineConfig(vocab_size=9, capabilities=can, limits=pb.Limits(max_n=most))
        assert any("n" in draw(1, number, config).members for number in range(8)) is is_there
