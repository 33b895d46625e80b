"""The gRPC channel to an engine: sizes, pings and reconnects, by where the engine is."""

from __future__ import annotations

from typing import Final

import grpc

from enginewire.addresses import is_loopback

MAX_MESSAGE_BYTES: Final = 64 << 20
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnect soon: the engine is on this machine or near.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # In spite of its name: how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    # gRPC would share connections between channels; a dead one shall not outlive its client.
    ("grpc.use_local_subchannel_pool", 1),
)
SOCKET_SCHEMES: Final = ("unix:", "unix-abstract:")
# gRPC would name the socket's path, which servers on Rust's h2 refuse.
SOCKET_OPTIONS: Final = (("grpc.default_authority", "localhost"),)


def open_channel(target: str) -> grpc.aio.Channel:
    """Connects when it is first used. `target` is any gRPC name, such as unix:/run/engine.sock."""
    socket = SOCKET_OPTIONS if target.startswith(SOCKET_SCHEMES) else ()
    return grpc.aio.insecure_channel(target, options=(*OPTIONS, *keepalive(target), *socket))


def keepalive(target: str) -> tuple[tuple[str, int], ...]:
    """A wedged engine is noticed within seconds on this machine; elsewhere as often as every server bears."""
    silence, answer = (2_000, 2_000) if is_on_this_machine(target) else (10_000, 5_000)
    # Without ping_timeout it would take a minute.
    return (
        ("grpc.keepalive_time_ms", silence),
        ("grpc.keepalive_timeout_ms", answer),
        ("grpc.http2.ping_timeout_ms", answer),
    )


def is_on_this_machine(target: str) -> bool:
    """True for Unix sockets and loopback addresses."""
    if target.startswith(SOCKET_SCHEMES):
        return True
    host, _, _ = target.rpartition("/")[2].removeprefix("dns:").removeprefix("ipv4:").rpartition(":")
    return is_loopback(host.removeprefix("ipv6:").strip("[]"))
