"""Bytes on bare sockets: HTTP/2 frames in any order, HTTP/1.1 cut anywhere, and nothing of the kind."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import h2.connection
from hypothesis import strategies as st

from tests.patience import PATIENCE_SECONDS

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
HTTP = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\n",
    b"Host: x\r\nContent-Length: 5\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n",
    b"ffffffffffffffffff\r\n",
    b"0\r\n\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n\r\n",
    b"X: \r\n folded\r\n",
    b"\r\n\r\n",
    b"x" * 70_000,
    b"Content-Length: 3\r\nContent-Length: 5\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"G\0T / HTTP/1.1\r\n\r\n",
)
TLS_HELLO = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def call(path: str = "/enginewire.v1.EngineService/Generate", message: bytes = b"", **more: str) -> bytes:
    """The frames of a whole gRPC call, behind preface and settings."""
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    connection.send_headers(1, [*{**fields, "content-type": "application/grpc", **more}.items()])
    connection.send_data(1, b"\0" + struct.pack(">I", len(message)) + message, end_stream=True)
    return connection.data_to_send()


GRPC = (
    call(),
    call(message=b"\x0a\x01r"),
    call(path="/no.Service/Nothing"),
    call(**{"grpc-timeout": "99999999H"}),
    call(**{"grpc-timeout": "0n"}),
    call(**{"grpc-encoding": "gzip"}),
    call(**{"x-bin": "no base64!"}),
    call(**{"grpc-timeout": "-1x"}),
    call(**{f"k{i}": "v" for i in range(1000)}),
    call(x="y" * 17_000),
)


def conversations() -> st.SearchStrategy[Sequence[bytes]]:
    """What is written, one piece after the other."""
    stream = st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1])
    payload = st.one_of(
        st.binary(max_size=40), st.sampled_from([bytes(4), bytes(8), b"\xff" * 6, bytes(17_000)])
    )
    frames = st.builds(frame, st.integers(0, 11), st.integers(0, 255), stream, payload)
    pieces = st.one_of(frames, frames, st.sampled_from(GRPC), st.sampled_from(HTTP), st.binary(max_size=64))
    begin = st.sampled_from([PREFACE + frame(SETTINGS, 0, 0, b""), PREFACE, b"", TLS_HELLO])
    return st.tuples(begin, st.lists(pieces, max_size=5)).map(lambda pair: [pair[0], *pair[1]])


def send(address: str, pieces: Sequence[bytes]) -> tuple[str, str]:
    """Say it all and hang up; nothing is wrong unless the server never lets go."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except TimeoutError:
            return "internal", "the connection stays, although its caller has said goodbye"
        except OSError:  # it was ended in the middle of what we said
            pass
    return "", "let go"
