"""gRPC's own options of the listening side: sizes, streams, and how often either side pings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from enginewire.server.config import ServerOptions

MIN_KEEPALIVE_MS: Final = 1_000


def channel_options(options: ServerOptions) -> list[tuple[str, int]]:
    """Key and value of each."""
    return [
        # Two servers on one port would share its connections without any error.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        # A wedged client is noticed within 15 s; without ping_timeout it would take a minute.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        # A client's own keepalive must never cut a long prefill.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_KEEPALIVE_MS),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", 10_000),
    ]
