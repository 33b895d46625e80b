"""The trace of an HTTP caller on its way to the engine."""

from __future__ import annotations

import pytest

from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.conftest import vocabulary
from tests.backend.frontends.http_api.serving import sdk
from tests.backend.hostile import GOOD_ANSWER
from tests.backend.replay.test_attempts import Lives, backend_on
from tests.enginewire.tracing.test_trace_context import VALID

__all__ = ["vocabulary"]  # fixtures

TRACE = {"traceparent": VALID, "tracestate": "a=1"}


@pytest.mark.parametrize(
    ("headers", "arrives"),
    [
        (TRACE, TRACE),
        ({"Traceparent": VALID, "authorization": "Bearer secret"}, {"traceparent": VALID}),
        ({"traceparent": "00-garbage", "tracestate": "a=1"}, {}),
        ({}, {}),
    ],
)
async def test_every_prompt_of_a_request_has_the_trace_of_its_caller(
    socket_folder, vocabulary, headers: dict[str, str], arrives: dict[str, str]
) -> None:
    engine = Lives(*[GOOD_ANSWER] * 2)
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        tokenizer = BackendTokenizer.from_files(byte_tokenizer().files)
        async with sdk(TextBackend(backend, tokenizer)) as client:
            asked = {"model": "mocker", "prompt": ["ping", "ping"]}
            await client.completions.create(**asked, extra_headers=headers)
    sent = [received.metadata for received in engine.received]
    named = ("traceparent", "tracestate", "authorization")
    assert [{key: each[key] for key in named if key in each} for each in sent] == [arrives] * 2


async def test_embeddings_have_it_too(text_backend: TextBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    client, traces = text_backend.backend.client, []
    embed = client.embed

    async def watched(request: object, **options: object) -> object:
        traces.append(options["metadata"])
        return await embed(request, **options)

    monkeypatch.setattr(client, "embed", watched)
    async with sdk(text_backend) as caller:
        await caller.embeddings.create(model="mocker", input="ping", extra_headers=TRACE)
    assert traces == [TRACE]
