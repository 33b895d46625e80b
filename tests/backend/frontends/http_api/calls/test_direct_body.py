"""Events that are written in the pass over the engine's frame: nothing else changes for their reader."""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import httptools
import orjson
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from enginewire.backend.decoding.decoder import Decoder
from enginewire.backend.decoding.detokenizer import DecodeError
from enginewire.backend.frontends.http_api.calls.direct_body import DirectBody
from enginewire.backend.frontends.http_api.openai.prompts import streams
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.conftest import vocabulary
from tests.backend.frontends.http_api.raw_http import caller
from tests.backend.frontends.http_api.serving import serving_http
from tests.backend.hostile import tokens
from tests.backend.replay.test_attempts import Lives, backend_on
from tests.backend.test_inline_decoder import plain_text
from tests.certificates import Authority

__all__ = ["vocabulary"]  # fixtures

TEXT = b'an "answer"\nof some length'
# Text that may become one is withheld for a while, and an event of nothing would be the end.
STOP = "of some words"


def asked(head: str = "HTTP/1.1", close: str = "", max_tokens: int = len(TEXT)) -> bytes:
    body = orjson.dumps({"prompt": "ping", "max_tokens": max_tokens, "stream": True, "stop": STOP})
    lines = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{close}\r\n"
    return f"POST /v1/completions {head}\r\n{lines}".encode() + body


class Parsed:
    """Answers as a strict parser sees them."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.num_ended = 0
        self._parser = httptools.HttpResponseParser(self)

    def read(self, data: bytes) -> Self:
        self._parser.feed_data(data)
        return self

    def on_message_begin(self) -> None:
        self.bodies.append(b"")

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def on_message_complete(self) -> None:
        self.num_ended += 1

    @property
    def streams(self) -> list[list[dict]]:
        return [
            [orjson.loads(line.removeprefix(b"data: ")) for line in body.split(b"\n\n")[:-2]]
            for body in self.bodies
            if body.endswith(b"data: [DONE]\n\n")
        ]

    @property
    def texts(self) -> list[bytes]:
        return ["".join(text_of(event) for event in each).encode() for each in self.streams]


def text_of(event: dict) -> str:
    return "".join(choice["text"] for choice in event.get("choices", ()))


@asynccontextmanager
async def spoken(folder: Path, vocabulary, *scripts: Sequence[object], **given: object) -> AsyncIterator[str]:
    """The address of a face in front of an engine that plays the scripts."""
    async with backend_on(folder, vocabulary, Lives(*scripts)) as backend:
        tokenizer = BackendTokenizer.from_files(byte_tokenizer().files)
        async with serving_http(TextBackend(backend, tokenizer), **given) as face:
            yield face.address


@pytest.fixture
def through_asgi(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The pieces of bodies that took the way through ASGI."""
    pieces: list[bytes] = []
    send = RequestResponseCycle.send

    async def noted(self: RequestResponseCycle, message: dict) -> None:
        if message["type"] == "http.response.body":
            pieces.append(message["body"])
        await send(self, message)

    monkeypatch.setattr(RequestResponseCycle, "send", noted)
    return pieces


@pytest.mark.parametrize(
    ("requests", "num_answers"),
    [
        (asked() + asked(close="connection: close\r\n"), 2),
        (asked(close="connection: close\r\n"), 1),
        (asked("HTTP/1.0"), 1),
    ],
    ids=["one connection for two", "one that is closed", "HTTP 1.0"],
)
async def test_all_between_the_first_event_and_the_end_is_written_without_asgi(
    socket_folder, vocabulary, through_asgi, requests: bytes, num_answers: int
) -> None:
    scripts = [[*plain_text(TEXT), 5.0]] * num_answers
    async with spoken(socket_folder, vocabulary, *scripts) as address, caller(address) as client:
        await client.say(requests)
        parsed = Parsed().read(await client.everything())
    assert parsed.texts == [TEXT] * num_answers
    assert parsed.num_ended == num_answers
    # The first one and the end, or some more on a busy machine.
    assert len(through_asgi) < len(TEXT) / 2 * num_answers


async def test_it_goes_through_tls(socket_folder, vocabulary, through_asgi, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.signed("mine")
    files = {"ssl_certfile": mine.certificate, "ssl_keyfile": mine.key}
    trusting = ssl.create_default_context(cafile=authority.file)
    async with (
        spoken(socket_folder, vocabulary, [*plain_text(TEXT), 5.0], **files) as address,
        caller(address, tls=trusting) as client,
    ):
        await client.say(asked(close="connection: close\r\n"))
        assert Parsed().read(await client.everything()).texts == [TEXT]
    assert len(through_asgi) < len(TEXT) / 2


@pytest.mark.parametrize("seed", range(4))
async def test_whoever_reads_slowly_now_and_then_misses_nothing(
    socket_folder, vocabulary, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(DirectBody, "can_take", property(lambda body: chance.random() < 0.5))
    monkeypatch.setattr(streams, "MAX_WAITING_OUTPUTS", 1)
    bursts: list[object] = []
    for position in range(0, 60, 3):
        bursts += [tokens(bytes([97 + position % 26 + at]), position + at) for at in range(3)] + [0.002]
    async with spoken(socket_folder, vocabulary, [*bursts, 5.0]) as address, caller(address) as client:
        await client.say(asked(max_tokens=60, close="connection: close\r\n"))
        parsed = Parsed().read(await client.everything())
    expected = bytes(97 + position // 3 * 3 % 26 + position % 3 for position in range(60))
    assert parsed.texts == [expected]


async def test_what_cannot_be_decoded_ends_the_stream_with_an_error(
    socket_folder, vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_one = Decoder.take_one

    def failing(self: Decoder, token_id: int) -> str | None:
        if token_id == ord("!"):
            raise DecodeError("decode error: no text")
        return take_one(self, token_id)

    monkeypatch.setattr(Decoder, "take_one", failing)
    async with (
        spoken(socket_folder, vocabulary, [*plain_text(b"as!well"), 5.0]) as address,
        caller(address) as client,
    ):
        await client.say(asked(close="connection: close\r\n"))
        (events,) = Parsed().read(await client.everything()).streams
    assert "".join(map(text_of, events)) == "as"
    assert events[-1]["error"]["code"] == "internal"
