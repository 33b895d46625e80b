"""The connection to one engine: readiness, facts, tokenizer, refusals of every kind, a new start."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import DEADLINE_SLACK_SECONDS, EngineClient
from enginewire.backend.engines.connection.messages import LIFETIME_KEY
from enginewire.backend.engines.failure import KNOWN_REASONS, RequestFailed, failed
from enginewire.backend.engines.stream import Patience
from enginewire.backend.inline_decoder import RequestTracker
from enginewire.v1.status_codes import STATUS_CODES
from tests.backend.asking import ask, hear
from tests.backend.hostile import END, engine_info, terminal, tokens
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

BOTH = pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])


def manifest(*files: tuple[str, int, str]) -> pb.GetTokenizerResponse:
    listed = [pb.TokenizerFile(name=name, size=size, sha256=digest) for name, size, digest in files]
    return pb.GetTokenizerResponse(manifest=pb.TokenizerManifest(files=listed))


def chunk(name: str, data: bytes) -> pb.GetTokenizerResponse:
    return pb.GetTokenizerResponse(chunk=pb.TokenizerChunk(name=name, data=data))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_an_engine_that_is_starting_is_waited_for(engine_server):
    serving = await engine_server(is_started=False)
    async with EngineClient(serving.server.target) as client:
        waiting = asyncio.create_task(client.wait_ready(10))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await serving.server.start()
        assert (await waiting).config.model == "mocker"


async def test_an_engine_that_listens_later_is_waited_for(hostile_engine, socket_folder):
    async with EngineClient(f"unix:{socket_folder}/hostile0.sock") as client:
        waiting = asyncio.create_task(client.wait_ready(10))
        await asyncio.sleep(0.3)
        await hostile_engine()
        assert (await waiting).engine_lifetime_id == "life"


@pytest.mark.parametrize("state", [pb.ENGINE_STATE_STARTING, pb.ENGINE_STATE_DRAINING, 99])
async def test_an_engine_that_never_gets_ready_is_reported_in_time(hostile_engine, state):
    engine = await hostile_engine(state=state)
    async with EngineClient(engine.target) as client:
        began = time.monotonic()
        with pytest.raises(RequestFailed) as caught:
            await client.wait_ready(1.0)
    assert 1.0 <= time.monotonic() - began < PATIENCE_SECONDS
    assert caught.value.reason == pb.ERROR_REASON_NOT_STARTED
    assert caught.value.retryable


async def test_an_engine_that_is_not_there_is_reported_in_time(socket_folder: Path):
    async with EngineClient(f"unix:{socket_folder}/nobody.sock") as client:
        began = time.monotonic()
        with pytest.raises(RequestFailed) as caught:
            await client.wait_ready(0.3)
    assert 0.3 <= time.monotonic() - began < PATIENCE_SECONDS
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert caught.value.retryable


async def test_an_engine_that_accepts_and_says_nothing_is_reported_in_time(socket_folder: Path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_folder / "mute.sock"))
        listener.listen()
        client = EngineClient(f"unix:{socket_folder}/mute.sock")
        began = time.monotonic()
        with pytest.raises(RequestFailed):
            await client.wait_ready(0.3)
        assert time.monotonic() - began < PATIENCE_SECONDS
        with pytest.raises(RequestFailed):
            await asyncio.wait_for(
                client.submit(pb.GenerateRequest(request=ask()), timeout=0.2), PATIENCE_SECONDS
            )
        await client.close()


async def test_an_engine_that_keeps_its_load_to_itself_is_reported_in_time(hostile_engine):
    engine = await hostile_engine(has_load=False)
    async with EngineClient(engine.target) as client:
        with pytest.raises(RequestFailed) as caught:
            await asyncio.wait_for(client.wait_ready(0.3), PATIENCE_SECONDS)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


NEWEST = pb.CONTRACT_REVISION


@pytest.mark.parametrize(
    ("oldest", "newest"), [(NEWEST + 1, NEWEST + 2), (NEWEST + 1, 1), (NEWEST, NEWEST - 1), (0, 0)]
)
async def test_an_engine_without_a_common_revision_is_refused_at_once(
    hostile_engine, vocabulary, oldest, newest
):
    info = engine_info()
    info.minimum_client_revision, info.maximum_client_revision = oldest, newest
    engine = await hostile_engine(info=info)
    async with EngineClient(engine.target) as client:
        with pytest.raises(RequestFailed, match="contract revision") as caught:
            await asyncio.wait_for(client.wait_ready(30 * PATIENCE_SECONDS), PATIENCE_SECONDS)
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
        assert caught.value.reason == pb.ERROR_REASON_REVISION_MISMATCH
        heard = await hear(Backend(client, vocabulary), ask())
        assert heard.failure.reason == pb.ERROR_REASON_REVISION_MISMATCH
    assert engine.received == []


@BOTH
@pytest.mark.parametrize(
    ("oldest", "newest", "named"), [(1, 1, 1), (1, NEWEST + 1, NEWEST), (NEWEST, NEWEST, NEWEST)]
)
async def test_an_older_or_newer_engine_hears_the_newest_revision_that_both_know(
    hostile_engine, vocabulary, multiplexed, oldest, newest, named
):
    info = engine_info()
    info.minimum_client_revision, info.maximum_client_revision = oldest, newest
    engine = await hostile_engine(info=info)
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        await hear(Backend(client, vocabulary), ask())
    assert [received.generate.client_revision for received in engine.received] == [named]


async def test_a_request_that_is_sent_again_names_what_the_next_engine_knows(hostile_engine):
    older = engine_info()
    older.minimum_client_revision = older.maximum_client_revision = 1
    request = pb.GenerateRequest(request_id="a", request=ask())
    for info, named in ((engine_info(), NEWEST), (older, 1)):
        engine = await hostile_engine(info=info)
        async with EngineClient(engine.target) as client:
            await client.submit(request)
            assert request.client_revision == named


async def test_facts_that_do_not_parse_are_a_violation(hostile_engine, vocabulary):
    engine = await hostile_engine(raw_info=b"\xff")
    async with EngineClient(engine.target) as client:
        heard = await hear(Backend(client, vocabulary), ask())
    assert heard.failure.message == "protocol violation: bytes that are no GetEngineInfoResponse"


async def test_the_tokenizer_of_the_mocker_arrives_whole(engine_server):
    serving = await engine_server()
    async with EngineClient(serving.server.target) as client:
        files = await client.tokenizer_files()
    assert files == dict(serving.server.lifecycle.engine.tokenizer().files)


async def test_chunks_are_put_together(hostile_engine):
    parts = [
        manifest(("a", 4, sha256(b"abcd")), ("b", 0, sha256(b""))),
        chunk("a", b"ab"),
        chunk("a", b"cd"),
    ]
    engine = await hostile_engine(tokenizer=parts)
    async with EngineClient(engine.target) as client:
        assert await client.tokenizer_files() == {"a": b"abcd", "b": b""}


BROKEN_TOKENIZERS = {
    "another content": [manifest(("a", 2, sha256(b"xx"))), chunk("a", b"ab")],
    "too short": [manifest(("a", 3, sha256(b"abc"))), chunk("a", b"ab")],
    "missing": [manifest(("a", 2, sha256(b"ab")))],
    "larger than listed": [manifest(("a", 2, sha256(b"ab"))), chunk("a", b"ab"), chunk("a", b"c")],
    "a file nobody listed": [manifest(("a", 0, sha256(b""))), chunk("b", b"b")],
    "data before the manifest": [chunk("a", b"ab"), manifest(("a", 2, sha256(b"ab")))],
}


@pytest.mark.parametrize("name", BROKEN_TOKENIZERS)
async def test_a_tokenizer_that_differs_from_its_manifest_is_a_violation(hostile_engine, name):
    engine = await hostile_engine(tokenizer=BROKEN_TOKENIZERS[name])
    async with EngineClient(engine.target) as client:
        with pytest.raises(RequestFailed, match="protocol violation: ") as caught:
            await client.tokenizer_files()
    assert caught.value.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION


async def test_a_tokenizer_beyond_all_measure_is_refused_before_its_data(hostile_engine):
    engine = await hostile_engine(tokenizer=[manifest(("a", 1 << 40, "")), chunk("a", b"ab")])
    async with EngineClient(engine.target) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.tokenizer_files()
    assert caught.value.reason == pb.ERROR_REASON_TOO_LARGE


@BOTH
async def test_metadata_revision_and_deadline_reach_the_engine(hostile_engine, vocabulary, multiplexed):
    engine = await hostile_engine()
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        backend = Backend(client, vocabulary)
        await hear(backend, ask(), request_id="named", timeout=5.0, metadata={"traceparent": "00-1-2-03"})
        await hear(backend, ask())
    named, unnamed = engine.received
    assert named.generate.request_id == "named"
    assert named.generate.client_revision == pb.CONTRACT_REVISION
    assert named.metadata["traceparent"] == "00-1-2-03"
    # gRPC rounds up.
    assert 4.0 < named.timeout < 5.2
    assert unnamed.timeout is None
    assert len(unnamed.generate.request_id) == 32


@BOTH
async def test_every_failure_arrives_with_all_it_says_and_the_prefix_stands(
    hostile_engine, vocabulary, multiplexed
):
    scripts = {}
    for reason in KNOWN_REASONS:
        status = failed(STATUS_CODES[reason], reason, "it says why", retryable=True, field="token_ids").status
        scripts[f"first-{reason}"] = [status]
        scripts[f"later-{reason}"] = [tokens(b"po"), status]
    engine = await hostile_engine(scripts=scripts)
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        backend = Backend(client, vocabulary)
        for name in scripts:
            heard = await hear(backend, ask(), request_id=name)
            when, reason = name.split("-")
            assert heard.failure.reason == int(reason)
            assert heard.failure.code == STATUS_CODES[int(reason)].value[0]
            assert heard.failure.message == "it says why"
            assert (heard.failure.field, heard.failure.retryable) == ("token_ids", True)
            assert heard.text() == ("po" if when == "later" else "")
        assert (await hear(backend, ask())).text() == "pong"
    assert engine.aborted == [] or not multiplexed


@BOTH
@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_every_bare_status_is_one_error(hostile_engine, vocabulary, multiplexed, code):
    bare = pb.Status(code=code.value[0], message="bare")
    engine = await hostile_engine(scripts={"bad": [bare]})
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        heard = await hear(Backend(client, vocabulary), ask(), request_id="bad")
    assert len(heard.items) == 1
    assert (heard.failure.code, heard.failure.message) == (code.value[0], "bare")
    # As the end of a call the other three are gRPC's own words for a broken stream.
    broken = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}
    if multiplexed:
        broken = set()
    assert heard.failure.retryable is (code in {grpc.StatusCode.UNAVAILABLE} | broken)


@pytest.mark.parametrize("life", ["life", ""])
async def test_the_headers_of_a_failed_call_tell_whether_it_was_accepted(hostile_engine, vocabulary, life):
    bad = failed(grpc.StatusCode.INTERNAL, pb.ERROR_REASON_INTERNAL, "bad").status
    headers = [(LIFETIME_KEY, life)] if life else []
    engine = await hostile_engine(scripts={"bad": [0.05, bad]}, headers=headers)
    tracker = RequestTracker()
    async with EngineClient(engine.target, multiplexed=False) as client:
        backend = Backend(client, vocabulary)
        heard = await hear(backend, ask(), request_id="bad", tracker=tracker)
    assert heard.failure.message == "bad"
    assert tracker.engine_lifetime_id == life


async def test_a_stream_that_died_is_opened_again_by_the_next_request(hostile_engine, vocabulary):
    def end_of_stream(handle: int) -> pb.Status:
        return pb.Status(code=14, message="going down")

    engine = await hostile_engine(scripts={"bad": [tokens(b"po"), end_of_stream], "other": [asyncio.Event()]})
    async with EngineClient(engine.target) as client:
        backend = Backend(client, vocabulary)
        await client.wait_ready(5)
        other, bad = await asyncio.gather(
            hear(backend, ask(), request_id="other"), hear(backend, ask(), request_id="bad")
        )
        for heard in (other, bad):
            assert heard.failure.reason == pb.ERROR_REASON_ENGINE_DEAD
            assert heard.failure.retryable
        engine.info.config.vocab_size = 2
        again = await hear(backend, ask())
        # The engine may be another one now: its facts were asked for again.
        assert "vocabulary of 2" in again.failure.message
        assert engine.num_streams == 2


async def test_a_request_larger_than_the_engine_takes_fails_alone(engine_server, vocabulary):
    serving = await engine_server(max_message_bytes=65_536)
    async with EngineClient(serving.server.target) as client:
        backend = Backend(client, vocabulary)
        await client.wait_ready(5)
        huge, small = await asyncio.gather(hear(backend, ask([1] * 70_000)), hear(backend, ask()))
        assert huge.failure.reason == pb.ERROR_REASON_TOO_LARGE
        assert small.text() == "ping"
        # Together these are larger than a frame may be.
        many = await asyncio.gather(*[hear(backend, ask([97] * 3_000, 2)) for _ in range(60)])
        assert {heard.text() for heard in many} == {"aa"}


IGNORANT = {
    "silent": [tokens(b"a"), 60.0],
    "talking": [step for number in range(300) for step in (tokens(b"a", number), 0.01)],
}


@BOTH
@pytest.mark.parametrize("name", IGNORANT)
async def test_a_deadline_that_the_engine_ignores_is_kept_here(hostile_engine, vocabulary, multiplexed, name):
    engine = await hostile_engine(scripts={"bad": IGNORANT[name]})
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        began = time.monotonic()
        heard = await hear(Backend(client, vocabulary), ask(max_tokens=300), request_id="bad", timeout=1.0)
        assert 1.0 < time.monotonic() - began < PATIENCE_SECONDS
        assert heard.failure.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED
        assert heard.text().startswith("a")
        await until_true(lambda: engine.aborted == ["bad"])


@BOTH
async def test_an_engine_that_forgets_a_request_is_left(hostile_engine, vocabulary, multiplexed):
    """And the whole stream, when it does not answer the abort either."""
    engine = await hostile_engine(scripts={"bad": IGNORANT["silent"], "other": [60.0]})
    patience = Patience(first_token=0.0, token=0.2)
    async with EngineClient(engine.target, multiplexed=multiplexed, patience=patience) as client:
        backend = Backend(client, vocabulary)
        other = asyncio.create_task(hear(backend, ask(), request_id="other"))
        heard = await asyncio.wait_for(hear(backend, ask(), request_id="bad"), PATIENCE_SECONDS)
        assert heard.text() == "a"
        assert heard.failure.message == "the engine has sent nothing about the request for 0.2 s"
        if multiplexed:
            failure = (await asyncio.wait_for(other, PATIENCE_SECONDS)).failure
            assert failure.message == "the engine has not answered an abort for 0.2 s"
        other.cancel()


async def test_a_caller_that_reads_too_late_is_told_so_whatever_waits(hostile_engine, vocabulary):
    engine = await hostile_engine(scripts={"bad": [tokens(b"a"), 0.1, tokens(b"b", 1), 60.0]})
    async with EngineClient(engine.target) as client:
        # Its time is for the answer, not for a connection.
        await client.info(PATIENCE_SECONDS)
        outputs = Backend(client, vocabulary).generate(ask(), request_id="bad", timeout=1.0)
        await anext(outputs)
        await asyncio.sleep(1.0 + DEADLINE_SLACK_SECONDS + 0.05)
        (late,) = [item async for item in outputs]
    assert late.error.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED


async def test_requests_are_aborted_by_id(engine_server, vocabulary):
    serving = await engine_server(mocker_itl_ms=5.0)
    async with EngineClient(serving.server.target) as client:
        request = ask(max_tokens=4000)
        request.stop_conditions.ignore_eos = True
        task = asyncio.create_task(hear(Backend(client, vocabulary), request, request_id="r1"))
        await serving.until(lambda load: load.running == 1)
        answer = await client.abort(["r1", "r2"], "enough")
        outcomes = [result.outcome for result in answer.results]
        assert outcomes == [pb.ABORT_OUTCOME_ABORTED, pb.ABORT_OUTCOME_UNKNOWN]
        heard = await task
    assert heard.finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert heard.failure is None


async def test_an_rpc_the_engine_does_not_have_is_unsupported(hostile_engine):
    engine = await hostile_engine()
    async with EngineClient(engine.target) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.abort(["r1"], "enough")
    assert caught.value.reason == pb.ERROR_REASON_UNSUPPORTED


async def test_adapters_that_only_an_operator_may_list_are_none(hostile_engine):
    info = engine_info()
    info.config.capabilities.lora = True
    engine = await hostile_engine(info=info)
    async with EngineClient(engine.target) as client:
        assert list(await client.adapters(10)) == []


async def test_an_engine_without_multiplexing_gets_generate_calls(hostile_engine, vocabulary):
    info = engine_info()
    info.config.capabilities.multiplexed = False
    engine = await hostile_engine(info=info)
    async with EngineClient(engine.target) as client:
        assert (await hear(Backend(client, vocabulary), ask())).text() == "pong"
    assert engine.num_streams == 0


async def test_a_closed_client_leaves_no_task_behind(hostile_engine, vocabulary):
    before = asyncio.all_tasks()
    engine = await hostile_engine(scripts={"slow": [tokens(b"po"), asyncio.Event(), terminal(b"ng", 2), END]})
    client = EngineClient(engine.target)
    task = asyncio.create_task(hear(Backend(client, vocabulary), ask(), request_id="slow"))
    await until_true(lambda: bool(engine.received))
    await client.close()
    assert (await task).failure.reason == pb.ERROR_REASON_CANCELLED
    await engine.stop()
    await until_true(lambda: asyncio.all_tasks() <= before)


async def test_a_socket_is_called_localhost(tmp_path: Path) -> None:
    """Rust's h2 refuses the name that gRPC would make of the path."""
    seen = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\4\0\0\0\0\0")  # an empty SETTINGS frame, or gRPC sends no headers
        while b":path" not in seen:
            seen.extend(await reader.read(4096))
        writer.close()

    server = await asyncio.start_unix_server(listen, tmp_path / "s.sock")
    async with EngineClient(f"unix:{tmp_path / 's.sock'}") as client:
        with pytest.raises(RequestFailed):
            await client.info(5)
    assert b"localhost" in seen
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("ask_for", ["load", "info", "wait_ready", "watch_load", "submit"])
async def test_a_socket_that_a_stranger_could_have_made_gets_nothing(hostile_engine, ask_for: str) -> None:
    engine = await hostile_engine(has_watch=True)
    Path(engine.target.removeprefix("unix:")).parent.chmod(0o777)
    async with EngineClient(engine.target) as client:
        asks = {
            "load": client.load,
            "info": client.info,
            "wait_ready": lambda: client.wait_ready(5),
            "watch_load": lambda: anext(aiter(client.watch_load(50))),
            "submit": lambda: client.submit(pb.GenerateRequest(request_id="r", request=ask())),
        }
        with pytest.raises(RequestFailed, match=r"everybody may replace files in it; --socket-owner") as told:
            await asks[ask_for]()
    assert told.value.reason == pb.ERROR_REASON_AUTH
    assert engine.received == []
