"""What an engine says of its load, beside the requests that are seen to be answered."""

from __future__ import annotations

from contextlib import aclosing

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.page.engine_loads import MAX_LOOKS, EngineLoads
from tests.backend.asking import ask
from tests.backend.hostile import tokens
from tests.backend.replay.test_attempts import Lives, backend_on
from tests.server.serving import until_true

FOREVER = 30.0


class Behind(Lives):
    """An engine whose load tells of its requests only when it has been asked a few times, by nobody else."""

    def __init__(self, num_behind: int, *scripts: object) -> None:
        super().__init__(*scripts)
        # Else the backend asks from time to time.
        self.has_watch = True
        self.num_asked = 0
        self._num_behind = num_behind

    async def _load(self, data: bytes, call: grpc.aio.ServicerContext) -> bytes:
        self.num_asked += 1
        return await super()._load(data, call)

    @property
    def load(self) -> pb.Load:
        load = super().load
        if self.num_asked > self._num_behind:
            load.running = 1
        return load


@pytest.mark.parametrize("num_behind", [0, 2])
async def test_a_load_that_knows_less_than_what_is_answered_is_asked_again(
    socket_folder, vocabulary, num_behind
) -> None:
    engine = Behind(num_behind, [tokens(b"a"), FOREVER])
    async with (
        backend_on(socket_folder, vocabulary, engine) as backend,
        aclosing(backend.generate(ask())) as items,
    ):
        await anext(items)
        before = engine.num_asked
        (load,) = (await EngineLoads(backend).look()).values()
        assert load.running == 1
        assert engine.num_asked - before <= num_behind + 1


async def test_an_engine_that_never_tells_is_shown_as_it_says(socket_folder, vocabulary) -> None:
    engine = Behind(1000, [tokens(b"a"), FOREVER])
    async with (
        backend_on(socket_folder, vocabulary, engine) as backend,
        aclosing(backend.generate(ask())) as items,
    ):
        await anext(items)
        before = engine.num_asked
        (load,) = (await EngineLoads(backend).look()).values()
        assert (load.running, engine.num_asked - before) == (0, MAX_LOOKS)


async def test_an_engine_that_does_not_answer_is_shown_as_last_heard_of(socket_folder, vocabulary) -> None:
    engine = Lives()
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        await backend.engines.wait_ready(10)
        [endpoint] = backend.engines.all
        await engine.stop()
        await until_true(lambda: not endpoint.is_usable)
        endpoint.heard(pb.Load(running=7))
        (load,) = (await EngineLoads(backend).look()).values()
        assert load.running == 7 or load.state == pb.ENGINE_STATE_DEAD
