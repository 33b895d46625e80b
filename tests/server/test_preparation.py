"""A guide is refused before acceptance, and compiling one holds nobody up: over a real socket."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server.engines.interface import PreparingEngine
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.failures import InvalidRequest
from enginewire.server.services.engine import LIFETIME_KEY
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Serving, abort_frame, ask, collect, detail_of, submit

FIELD = "sampling_options.guided_decoding.regex"


class Compiling(MockerEngine):
    """A mocker that takes its time over regular expressions, ignores them, and refuses "("."""

    def __init__(self) -> None:
        super().__init__()
        self.num_compiling = 0
        self.go_on = asyncio.Event()

    async def start(self, worker_id: int) -> pb.EngineConfig:
        config = await super().start(worker_id)
        config.capabilities.guided_modes.append(pb.GUIDED_MODE_REGEX)
        return config

    async def prepare(self, request: pb.PreprocessedRequest) -> None:
        self.num_compiling += 1
        try:
            await self.go_on.wait()
        finally:
            self.num_compiling -= 1
        if request.sampling_options.guided_decoding.regex == "(":
            raise InvalidRequest(f"{FIELD}: not closed", field=FIELD)


def guided(request_id: str = "g1", regex: str = "a+") -> pb.GenerateRequest:
    request = ask(request_id, max_tokens=2)
    request.request.sampling_options.guided_decoding.regex = regex
    return request


@pytest.fixture
def engine() -> Compiling:
    made = Compiling()
    assert isinstance(made, PreparingEngine)
    return made


async def until_compiling(engine: Compiling, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while engine.num_compiling != count:  # noqa: ASYNC110  # there is no event to await
            await asyncio.sleep(0.002)


async def test_an_invalid_guide_is_refused_with_trailers_only(engine_server, engine):
    serving: Serving = await engine_server(engine)
    engine.go_on.set()
    call = serving.engine.Generate(guided(regex="("))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert detail_of(caught.value).field == FIELD
    assert LIFETIME_KEY not in await call.initial_metadata()


async def test_initial_metadata_waits_for_the_grammar(engine_server, engine):
    serving: Serving = await engine_server(engine)
    call = serving.engine.Generate(guided())
    metadata = asyncio.ensure_future(call.initial_metadata())
    await until_compiling(engine, 1)
    assert not metadata.done()
    engine.go_on.set()
    assert LIFETIME_KEY in await metadata
    assert len([response async for response in call]) == 2


async def test_a_call_that_is_cancelled_while_its_grammar_compiles_leaves_nothing(engine_server, engine):
    serving: Serving = await engine_server(engine)
    call = serving.engine.Generate(guided())
    reader = asyncio.ensure_future(call.read())
    await until_compiling(engine, 1)
    call.cancel()
    await until_compiling(engine, 0)
    assert await asyncio.wait([reader])
    engine.go_on.set()
    assert (await serving.generate(guided())).usage() == (5, 2)


async def test_multiplexed_frames_behind_a_guide_do_not_wait_for_it(engine_server, engine):
    serving: Serving = await engine_server(engine)
    frames = asyncio.Queue()

    async def sent():
        while (frame := await frames.get()) is not None:
            yield frame

    call = serving.engine.GenerateMultiplexed(sent())
    answers = asyncio.ensure_future(collect(call))
    for handle, regex in ((1, "a+"), (2, "("), (3, "b")):
        frames.put_nowait(submit(handle, guided(f"g{handle}", regex)))
    frames.put_nowait(submit(4, ask("plain", max_tokens=2)))
    frames.put_nowait(abort_frame(3))
    await until_compiling(engine, 2)
    await serving.until(lambda load: load.requests_finished == 1)
    frames.put_nowait(None)
    engine.go_on.set()
    found = await answers
    assert (found[1].usage(), found[4].usage()) == ((5, 2), (5, 2))
    assert (found[2].failure.field, found[2].is_accepted) == (FIELD, False)
    assert (found[3].failure.reason, found[3].is_accepted) == (pb.ERROR_REASON_CANCELLED, False)


async def test_a_stream_that_ends_while_a_grammar_compiles_leaves_nothing(engine_server, engine):
    serving: Serving = await engine_server(engine)
    call = serving.engine.GenerateMultiplexed(iter([submit(1, guided())]))
    reader = asyncio.ensure_future(call.read())
    await until_compiling(engine, 1)
    call.cancel()
    await until_compiling(engine, 0)
    assert await asyncio.wait([reader])


async def test_guides_beyond_the_queue_are_refused(engine_server, engine):
    serving: Serving = await engine_server(engine, max_num_queued_reqs=1)
    for turn in range(2):  # the second time there is as little room as the first
        engine.go_on.clear()
        compiling = asyncio.ensure_future(serving.generate(guided(f"g{turn}")))
        await until_compiling(engine, 1)
        refused = await serving.generate(guided("beyond"))
        assert refused.failure.reason == pb.ERROR_REASON_QUEUE_FULL
        engine.go_on.set()
        assert (await compiling).usage() == (5, 2)
        assert (await serving.generate(guided("after"))).usage() == (5, 2)
