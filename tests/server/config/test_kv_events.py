from __future__ import annotations

import json

import pytest

from enginewire.options import OptionError
from enginewire.server.config.kv_events import KvEventsConfig, at_rank
from enginewire.server.config.options import ServerOptions

ON = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:5557"}


def refusal(given: object) -> str:
    with pytest.raises(OptionError) as caught:
        ServerOptions(kv_events_config=given if isinstance(given, str) else json.dumps(given))
    return str(caught.value)


def test_nothing_is_published_unless_asked_for() -> None:
    assert not ServerOptions().kv_events.publishes
    for given in ({"enable_kv_cache_events": False}, ON | {"publisher": "null"}):
        assert not ServerOptions(kv_events_config=json.dumps(given)).kv_events.publishes


def test_vllms_words_are_read() -> None:
    given = ON | {
        "publisher": "zmq",
        "replay_endpoint": "ipc:///r",
        "buffer_steps": 5,
        "hwm": 7,
        "topic": "t",
    }
    config = ServerOptions(kv_events_config=json.dumps(given)).kv_events
    assert config == KvEventsConfig(
        enable_kv_cache_events=True,
        endpoint="tcp://127.0.0.1:5557",
        replay_endpoint="ipc:///r",
        buffer_steps=5,
        hwm=7,
        topic="t",
    )
    assert config.publishes


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{", "--kv-events-config: not JSON"),
        ("[]", "--kv-events-config: must be a JSON object"),
        ({"endpoint": "ipc:///e"}, "enable_kv_cache_events: must be true for events to be published"),
        (ON | {"max_queue_size": 3}, "no key 'max_queue_size'; there are enable_kv_cache_events, publisher,"),
        (ON | {"enable_kv_cache_events": 1}, "enable_kv_cache_events: must be true or false"),
        (ON | {"publisher": "kafka"}, "publisher: must be zmq or null"),
        (ON | {"endpoint": "127.0.0.1:5557"}, "endpoint: must be tcp://host:port or ipc:///path"),
        (ON | {"endpoint": None}, "endpoint: must be tcp://host:port or ipc:///path"),
        (ON | {"replay_endpoint": "tcp://*"}, "replay_endpoint: must be tcp://host:port or ipc:///path"),
        (ON | {"topic": 3}, "topic: must be text"),
        (ON | {"buffer_steps": 0}, "buffer_steps: must be a number from 1 on"),
        (ON | {"hwm": True}, "hwm: must be a number from 1 on"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_key(given: object, says: str) -> None:
    assert says in refusal(given)


@pytest.mark.parametrize(
    "endpoint", ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://router:5557", "tcp://[::]:5557"]
)
@pytest.mark.parametrize("key", ["endpoint", "replay_endpoint"])
def test_tokens_of_prompts_leave_the_machine_only_when_somebody_says_so(key: str, endpoint: str) -> None:
    given = ON | {key: endpoint}
    assert "others could read prompts" in refusal(given)
    assert ServerOptions(kv_events_config=json.dumps(given), allow_insecure=True).kv_events.publishes
    off = given | {"enable_kv_cache_events": False}
    assert not ServerOptions(kv_events_config=json.dumps(off)).kv_events.publishes


@pytest.mark.parametrize("endpoint", ["tcp://[::1]:5557", "tcp://localhost:1", "ipc:///run/events"])
def test_loopback_and_paths_need_no_word(endpoint: str) -> None:
    assert ServerOptions(kv_events_config=json.dumps(ON | {"endpoint": endpoint})).kv_events.publishes


def test_each_rank_has_an_endpoint_of_its_own() -> None:
    assert [at_rank("tcp://*:5557", rank) for rank in (0, 2)] == ["tcp://*:5557", "tcp://*:5559"]
    assert [at_rank("ipc:///events", rank) for rank in (0, 2)] == ["ipc:///events", "ipc:///events_dp2"]
