"""The gRPC channel to an engine: sizes, reconnects, our key, and pings as often as the engine bears them."""

from __future__ import annotations

from typing import Final

import grpc

from enginewire.access.keyed_channel import KeyedChannel
from enginewire.addresses import SOCKET_SCHEMES, is_on_this_machine
from enginewire.calling.trust import THIS_USER, Trust

MAX_MESSAGE_BYTES: Final = 64 << 20
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnect soon: the engine is on this machine or near.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # In spite of its name: how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    # gRPC would share connections between channels; a dead one shall not outlive its client.
    ("grpc.use_local_subchannel_pool", 1),
)
# gRPC would name the socket's path, which servers on Rust's h2 refuse.
SOCKET_OPTIONS: Final = (("grpc.default_authority", "localhost"),)


# Of an engine on this machine a long silence means more than of one behind a network. Milliseconds.
NEAR: Final = (2_000, 2_000)
FAR: Final = (10_000, 5_000)
# What servers of every gRPC library bear that say nothing else, while a call is open. More often is a
# strike, and the third one ends the connection with all that is on it.
UNSAID_INTERVAL_MS: Final = 300_000
MAX_ARGUMENT: Final = 2**31 - 1


def open_channel(
    target: str, min_ping_interval_ms: int | None = None, trust: Trust = THIS_USER
) -> grpc.aio.Channel:
    """Connects when it is first used. `target` is any gRPC name, such as unix:/run/engine.sock.

    `min_ping_interval_ms`: what the engine says it bears, None while it has said nothing.
    """
    channel = _plain_or_tls(target, min_ping_interval_ms, trust)
    return channel if trust.api_key is None else KeyedChannel(channel, trust.api_key)


def _plain_or_tls(target: str, min_ping_interval_ms: int | None, trust: Trust) -> grpc.aio.Channel:
    options = (*OPTIONS, *keepalive(target, min_ping_interval_ms))
    if target.startswith(SOCKET_SCHEMES):
        return grpc.aio.insecure_channel(target, options=(*options, *SOCKET_OPTIONS))
    if trust.tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, trust.tls.credentials(), options=(*options, *trust.tls.options))


def keepalive(target: str, min_ping_interval_ms: int | None) -> tuple[tuple[str, int], ...]:
    """A wedged engine is noticed within seconds, if it says that it bears to be asked so often."""
    silence, answer = NEAR if is_on_this_machine(target) else FAR
    borne = UNSAID_INTERVAL_MS if min_ping_interval_ms is None else min_ping_interval_ms
    # Without ping_timeout it would take a minute.
    return (
        ("grpc.keepalive_time_ms", min(max(silence, borne), MAX_ARGUMENT)),
        ("grpc.keepalive_timeout_ms", answer),
        ("grpc.http2.ping_timeout_ms", answer),
    )
