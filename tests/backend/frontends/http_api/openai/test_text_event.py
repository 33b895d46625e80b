"""Events that are only filled in are what they would be if each were written anew."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.frontends.http_api.openai.answer import Answer, Head
from enginewire.backend.frontends.http_api.openai.chat import ChatEndpoint
from enginewire.backend.frontends.http_api.openai.completions import CompletionEndpoint
from enginewire.backend.frontends.http_api.openai.endpoint import Endpoint
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.text_event import ANY_TEXT, TextEvent
from tests.backend.conftest import vocabulary

__all__ = ["vocabulary"]  # fixtures

# A model may have the name of anything, and a text may be anything that JSON has to escape.
HEAD = Head("id", 1, ANY_TEXT)
TEXTS = ["first", 'a "word"\n', ANY_TEXT, "", "é\u2028", "\\u0000", "last"]
WAYS = {
    "text": {},
    "usage at the end": {"include_usage": True},
    "usage everywhere": {"include_usage": True, "has_usage_everywhere": True},
    "token ids": {"with_token_ids": True},
}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_filled_in(text: str) -> None:
    written = orjson.dumps({"model": ANY_TEXT * 2, "text": ANY_TEXT, "end": None})
    assert orjson.loads(TextEvent(written).of(text)) == {"model": ANY_TEXT * 2, "text": text, "end": None}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("endpoint", [ChatEndpoint(), CompletionEndpoint()], ids=["chat", "completions"])
def test_an_event_says_the_same_however_it_is_written(endpoint: Endpoint, vocabulary, way: str) -> None:
    prompt = pb.BackendServiceGenerateRequest()
    prompt.request.sampling_options.n = 2
    asked = replace(GenerationRequest([prompt], True, False, {}), **WAYS[way])
    quick, slow = (Answer(endpoint, asked, HEAD, vocabulary, {0: [1, 2]}) for _ in range(2))
    for text in TEXTS:
        for index in (0, 1):
            reason = pb.FINISH_REASON_EOS if text == "last" else pb.FINISH_REASON_UNSPECIFIED
            output = BackendOutput([7], text=text, index=index, finish_reason=reason)
            # Of a batch nothing is filled in.
            assert quick.events([(0, output)]) == slow.events([(0, output), (0, BackendOutput(index=index))])
    assert quick.last_events() == slow.last_events()
    assert bool(quick._text_events) == (way in ("text", "usage at the end"))
