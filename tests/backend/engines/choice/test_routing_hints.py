"""What hints say, and which of them say two things."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.choice.routing_hints import (
    NO_HINTS,
    ROUTING_KEY,
    SESSION_SECONDS,
    Named,
    read_hints,
)
from enginewire.backend.engines.failure import RequestFailed


def hints_of(**routing: object):
    return read_hints(pb.RoutingHints(**routing))


def test_a_request_without_hints_may_go_anywhere() -> None:
    hints = hints_of(priority=3, expected_output_tokens=9)
    assert hints == NO_HINTS
    assert hints.field == ""
    assert hints.admits(None)


@pytest.mark.parametrize("name", ["backend_instance_id", "decode_worker_id"])
@pytest.mark.parametrize("worker_id", [0, 7, 2**64 - 1])
def test_one_worker_may_be_named(name: str, worker_id: int) -> None:
    hints = hints_of(**{name: worker_id})
    assert hints.worker == Named(f"routing.{name}", worker_id)
    assert hints.field == f"routing.{name}"
    assert [hints.admits(each) for each in (worker_id, worker_id ^ 1, None)] == [True, False, False]


def test_several_workers_may_be_allowed() -> None:
    hints = hints_of(allowed_worker_ids=[1, 2], backend_instance_id=2, decode_worker_id=2)
    assert [hints.admits(each) for each in (1, 2, None)] == [False, True, False]
    hints = hints_of(allowed_worker_ids=[1, 2])
    assert hints.field == "routing.allowed_worker_ids"
    assert [hints.admits(each) for each in (0, 1, 2, None)] == [False, True, True, False]


def test_the_prefill_worker_is_another_one() -> None:
    routing = pb.RoutingHints(prefill_worker_id=3, decode_worker_id=4, routing_key="k")
    prefill = read_hints(routing).of_prefill(routing)
    assert prefill.worker == Named("routing.prefill_worker_id", 3)
    assert prefill.routing_key == "k"
    routing.ClearField("prefill_worker_id")
    assert read_hints(routing).of_prefill(routing).worker is None


@pytest.mark.parametrize(
    ("field", "routing"),
    [
        ("routing.decode_worker_id", {"backend_instance_id": 1, "decode_worker_id": 2}),
        ("routing.backend_instance_id", {"backend_instance_id": 1, "allowed_worker_ids": [2]}),
        ("routing.decode_worker_id", {"decode_worker_id": 0, "allowed_worker_ids": [2]}),
        ("routing.session_control.session_id", {"session_control": pb.SessionControl(timeout_seconds=1)}),
    ],
)
def test_a_contradiction_is_refused_by_name(field: str, routing: dict[str, object]) -> None:
    with pytest.raises(RequestFailed) as caught:
        hints_of(**routing)
    assert caught.value.failure.field == field
    assert caught.value.reason == pb.ERROR_REASON_INVALID_REQUEST
    assert not caught.value.retryable


def test_a_prefill_worker_that_is_not_allowed_is_refused() -> None:
    routing = pb.RoutingHints(prefill_worker_id=3, allowed_worker_ids=[4])
    with pytest.raises(RequestFailed) as caught:
        read_hints(routing).of_prefill(routing)
    assert caught.value.failure.field == "routing.prefill_worker_id"


def test_the_routing_key_may_come_as_metadata() -> None:
    assert read_hints(pb.RoutingHints(), {ROUTING_KEY: "k"}).routing_key == "k"
    assert read_hints(pb.RoutingHints(routing_key="mine"), {ROUTING_KEY: "k"}).routing_key == "mine"


def test_a_session_has_a_key_a_timeout_and_an_action() -> None:
    def session(**fields: object):
        return hints_of(session_control=pb.SessionControl(session_id="s" * 1000, **fields)).session

    plain = session()
    assert plain is not None
    assert (len(plain.key), plain.timeout, plain.opens, plain.closes) == (16, SESSION_SECONDS, False, False)
    opened = session(action=pb.SESSION_ACTION_OPEN, timeout_seconds=2.5)
    assert opened is not None
    assert (opened.key, opened.timeout, opened.opens, opened.closes) == (plain.key, 2.5, True, False)
    closed = session(action=pb.SESSION_ACTION_CLOSE)
    assert closed is not None
    assert (closed.opens, closed.closes) == (False, True)
