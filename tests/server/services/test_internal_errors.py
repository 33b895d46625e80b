"""Every failure a caller can see, from every source: what is INTERNAL has an id that the log has too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server import failures, status
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.failures import EngineError, EngineMistake
from tests.server.serving import ask, detail_of, submit

SECRET = "secret"


def kinds(base: type[EngineError] = EngineError) -> Iterator[type[EngineError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


class Failing(MockerEngine):
    """Fails as it is told to: on submit, after acceptance, on embed."""

    def __init__(self) -> None:
        super().__init__(MockerOptions(itl_ms=5.0))
        self.on_submit: BaseException | None = None
        self.later: EngineError | None = None

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        if self.on_submit:
            raise self.on_submit
        super().submit(request, context)
        if self.later:
            asyncio.get_running_loop().call_soon(self._streams.fail, context, self.later)
            self._cancelled.append(context)

    async def embed(self, request: object, context: GenerateContext) -> pb.EmbeddingsEngineOutput:
        assert self.on_submit
        raise self.on_submit


def make(kind: type[BaseException]) -> BaseException:
    return kind("why" if issubclass(kind, EngineError) and kind is not EngineMistake else SECRET)


def check(detail: pb.ErrorDetail, message: str, log: str) -> None:
    """An internal failure has an id in message, details and log; no other has one."""
    error_id = detail.metadata[failures.ERROR_ID]
    assert bool(error_id) == (detail.reason == pb.ERROR_REASON_INTERNAL)
    assert error_id in message
    assert error_id in log
    assert SECRET not in message


FAILURES = list(kinds())


@pytest.mark.parametrize("kind", [*FAILURES, RuntimeError, KeyError, AssertionError])
async def test_whatever_a_submit_or_an_embed_raises(engine_server, caplog, kind):
    engine = Failing()
    serving = await engine_server(engine)
    engine.on_submit = make(kind)
    for call in (
        serving.engine.Generate(ask("a")).read(),
        serving.embedding.Embed(
            pb.EmbedRequest(
                request_id="e",
                request=pb.PreprocessedEmbeddingRequest(token_ids=[pb.TokenSequence(token_ids=[1])]),
            )
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        check(detail_of(caught.value), caught.value.details(), caplog.text)


@pytest.mark.parametrize("kind", FAILURES)
async def test_whatever_fails_an_accepted_request_on_both_kinds_of_stream(engine_server, caplog, kind):
    engine = Failing()
    serving = await engine_server(engine)
    engine.later = error = make(kind)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in serving.engine.Generate(ask("a")):
            pass
    check(detail_of(caught.value), caught.value.details(), caplog.text)
    failure = (await serving.multiplexed([submit(1, ask("b"))]))[1].failure
    check(failure, status.message_of(error), caplog.text)
    await serving.until_idle()


def test_an_id_is_given_once_and_logged_once(caplog):
    failure = EngineMistake("positions do not count from 0")
    first, second = status.to_status(failure), status.to_status(failure)
    assert first == second
    assert caplog.text.count("positions do not count from 0") == 1
    assert "positions" not in first.message


def test_every_reason_whose_name_is_internal_is_known_to_the_one_place_that_gives_ids():
    internal = {kind.reason for kind in kinds() if status.code_of(kind.reason) is grpc.StatusCode.INTERNAL}
    assert internal <= status.INTERNAL
