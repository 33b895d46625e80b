"""Events of engines on their way through the backend, and the annotations that it answers itself."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.annotated import Annotated, BackendOutput
from enginewire.backend.engines import stream as engine_stream
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.stream import EngineStream
from enginewire.backend.prompting.annotations import take_ours
from tests.backend.asking import ask, hear
from tests.backend.hostile import terminal, tokens
from tests.backend.replay.test_attempts import LOST, Lives, backend_on

A, B, SILENT = (
    pb.EngineEvent(event="a", id="1", comment=["first", "second"]),
    pb.EngineEvent(event="b"),
    pb.EngineEvent(event="a", id=""),
)
BOTH_RPCS = pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])


def told(items: list[Annotated[BackendOutput]]) -> list[object]:
    """Texts and events, in order."""
    return [
        item.data.text if item.data is not None else (item.event, item.id, list(item.comment))
        for item in items
    ]


@BOTH_RPCS
@pytest.mark.parametrize("is_inline", [False, True], ids=["items", "inline"])
async def test_events_pass_untouched_in_their_places(
    socket_folder, vocabulary, multiplexed: bool, is_inline: bool
) -> None:
    script = [A, tokens(b"p"), 0.02, tokens(b"o", 1), B, SILENT, tokens(b"n", 2), 0.02, terminal(b"g", 3)]
    async with backend_on(socket_folder, vocabulary, Lives(script), multiplexed=multiplexed) as backend:
        heard = await hear(backend, ask(annotations=["a", "b:c"]), is_inline=is_inline)
    texts = "".join(each if isinstance(each, str) else "|" for each in told(heard.items))
    assert texts == "|po||ng"
    assert [each for each in told(heard.items) if not isinstance(each, str)] == [
        ("a", "1", ["first", "second"]),
        ("b", None, []),
        ("a", "", []),
    ]
    assert heard.usage() == (4, 4)


@BOTH_RPCS
async def test_the_mocker_answers_through_the_backend(engine_server, vocabulary, multiplexed: bool) -> None:
    target = (await engine_server()).server.target
    async with EngineClient(target, multiplexed=multiplexed) as client:
        request = ask(annotations=["echo:hello"], sampling_options=pb.SamplingOptions(n=2))
        heard = await hear(Backend(client, vocabulary), request, request_id="mine")
    assert told(heard.items)[0] == ("echo", "mine", ["hello"])
    assert [item.event for item in heard.items[1:] if item.data is None] == []
    assert set(heard.finishes()) == {0, 1}


@BOTH_RPCS
@pytest.mark.parametrize(
    "events",
    [[B] * (engine_stream.MAX_EVENTS + 1), [pb.EngineEvent(event="a", comment=["x" * 65_536])]],
    ids=["too many", "too large"],
)
async def test_an_engine_that_tells_too_much_is_a_violation(
    socket_folder, vocabulary, multiplexed: bool, events: list[pb.EngineEvent]
) -> None:
    engine = Lives([tokens(b"p"), *events, 30.0])
    async with backend_on(socket_folder, vocabulary, engine, multiplexed=multiplexed) as backend:
        heard = await hear(backend, ask(annotations=["a", "b"]))
    assert heard.failure is not None
    assert heard.failure.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION
    assert "event" in heard.failure.message
    assert heard.text() == "p"


async def test_events_that_nobody_reads_count_as_a_lag() -> None:
    stream = EngineStream("r", lambda reason: None, max_waiting_tokens=100)
    stream.event(pb.EngineEvent(event="a", comment=["x" * 1000]))
    assert stream.failure is None
    for _ in range(4):
        stream.event(pb.EngineEvent(event="a", comment=["x" * 1000]))
    assert stream.failure is not None
    assert stream.failure.reason == pb.ERROR_REASON_SLOW_CONSUMER


async def test_what_was_answered_is_not_asked_again(socket_folder, vocabulary) -> None:
    engine = Lives([A, tokens(b"pon"), LOST], [B, terminal(b"g", 3)])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        heard = await hear(backend, ask(annotations=["a:x", "b", "a"]))
    assert [item.event for item in heard.items if item.data is None] == ["a", "migrated", "b"]
    assert heard.text() == "pong"
    first, second = engine.parts
    assert list(first.annotations) == ["a:x", "b", "a"]
    assert list(second.annotations) == ["b"]


async def test_a_request_that_had_nothing_but_events_begins_again_without_them(
    socket_folder, vocabulary
) -> None:
    engine = Lives([A, LOST], [terminal(b"pong")])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        heard = await hear(backend, ask(annotations=["a"]))
    assert told(heard.items) == [("a", "1", ["first", "second"]), "pong"]
    assert [list(part.annotations) for part in engine.parts] == [["a"], []]


def test_the_backends_own_annotations_are_taken_and_the_others_left() -> None:
    request = pb.PreprocessedRequest(annotations=["token_ids", "a", "formatted_prompt:x", "token_idsx"])
    assert take_ours(request) == {"formatted_prompt", "token_ids"}
    assert list(request.annotations) == ["a", "token_idsx"]
    request.output_options.formatted_prompt = True
    assert take_ours(request) == {"formatted_prompt"}
