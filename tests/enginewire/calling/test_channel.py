"""How often an engine is asked whether it is still there."""

from __future__ import annotations

import pytest

from enginewire.addresses import is_on_this_machine
from enginewire.calling.channel import keepalive


@pytest.mark.parametrize(
    "target",
    [
        "unix:/run/engine.sock",
        "unix-abstract:engine",
        "unix:///run/10.0.0.1:50051",
        "localhost:50051",
        "127.0.0.1:50051",
        "127.8.8.8:50051",
        "[::1]:50051",
        "ipv4:127.0.0.1:50051",
        "ipv6:[::1]:50051",
        "dns:localhost:50051",
        "dns:///localhost:50051",
    ],
)
def test_an_engine_on_this_machine_is_pinged_often(target: str) -> None:
    assert is_on_this_machine(target)
    assert dict(keepalive(target, 1_000))["grpc.keepalive_time_ms"] == 2_000


@pytest.mark.parametrize(
    "target",
    [
        "10.0.0.1:50051",
        "engine.example:50051",
        "unix-host.example:50051",
        "localhost.example:50051",
        "[2001:db8::1]:50051",
        "ipv4:10.0.0.1:50051",
        "dns:///engine.example:50051",
        "dns://127.0.0.1/engine.example:50051",
        "engine",
    ],
)
def test_an_engine_elsewhere_is_pinged_less_often(target: str) -> None:
    assert not is_on_this_machine(target)
    found = dict(keepalive(target, 1_000))
    assert (found["grpc.keepalive_time_ms"], found["grpc.keepalive_timeout_ms"]) == (10_000, 5_000)


@pytest.mark.parametrize("target", ["unix:/run/engine.sock", "engine.example:50051"])
@pytest.mark.parametrize(
    ("borne", "silence"),
    [(None, 300_000), (30_000, 30_000), (2**32 - 1, 2**31 - 1)],
)
def test_no_engine_is_pinged_more_often_than_it_says(target: str, borne: int | None, silence: int) -> None:
    assert dict(keepalive(target, borne))["grpc.keepalive_time_ms"] == silence
