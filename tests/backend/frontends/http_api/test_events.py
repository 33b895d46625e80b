"""Events of engines behind the HTTP face, whose streams have no place for them."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.conftest import vocabulary
from tests.backend.frontends.http_api.serving import sdk
from tests.backend.hostile import terminal, tokens
from tests.backend.replay.test_attempts import Lives, backend_on

__all__ = ["vocabulary"]  # fixtures

NO_LIST = pb.EngineEvent(event="token_ids", comment=["no list"])


@pytest.mark.parametrize("echo", [False, True])
async def test_an_event_that_nobody_asked_for_changes_no_answer(
    socket_folder, vocabulary, echo: bool
) -> None:
    script = [NO_LIST, tokens(b"pon"), NO_LIST, terminal(b"g", 3), 30.0]
    async with backend_on(socket_folder, vocabulary, Lives(script, script)) as backend:
        tokenizer = BackendTokenizer.from_files(byte_tokenizer().files)
        async with sdk(TextBackend(backend, tokenizer)) as client:
            asked = {"model": "mocker", "prompt": "ping", "echo": echo}
            whole = await client.completions.create(**asked)
            stream = await client.completions.create(**asked, stream=True)
            streamed = [choice.text async for chunk in stream for choice in chunk.choices]
    expected = "pingpong" if echo else "pong"
    assert whole.choices[0].text == "".join(streamed) == expected
