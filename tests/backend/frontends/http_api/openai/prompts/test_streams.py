"""What comes inline between a backend and the one reader of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import Annotated, BackendOutput
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.prompts import streams
from enginewire.backend.frontends.http_api.openai.prompts.streams import PromptStreams
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.inline_decoder import Inline
from enginewire.backend.prompting.prompts import WHOLE_PROMPT


class Bursts:
    """A backend that says `text`: what the middle of it is, inline and at once, as far as it is wanted."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.num_inline = 0

    async def generate(
        self, prompt: object, *, inline: Inline | None, **given: object
    ) -> AsyncIterator[Annotated[BackendOutput]]:
        assert inline is not None
        yield Annotated(BackendOutput(text=self._text[0]))
        while self.num_inline < len(self._text) - 2:
            # The reader runs.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            while self.num_inline < len(self._text) - 2:
                self.num_inline += 1
                if inline(BackendOutput(text=self._text[self.num_inline])) or self.num_inline == 10:
                    break
            yield Annotated(BackendOutput())
        yield Annotated(BackendOutput(text=self._text[-1], finish_reason=pb.FINISH_REASON_EOS))


def of(backend: Bursts) -> PromptStreams:
    asked = GenerationRequest([pb.BackendServiceGenerateRequest()], True, False, {})
    return PromptStreams(cast(TextBackend, backend), asked, WHOLE_PROMPT, None, "id", {})


async def test_what_is_taken_never_overtakes_what_waits() -> None:
    heard, turns, is_reading = "", 0, False

    def take(output: BackendOutput) -> bool:
        nonlocal heard, turns
        assert is_reading
        turns += 1
        if turns == 3:
            return False
        heard += output.text
        return True

    async with of(Bursts("abcdefghijklmnop")) as reading:
        batch = await reading.read()
        while batch:
            heard += "".join(output.text for _, output in batch)
            is_reading = True
            batch = await reading.read(take)
            is_reading = False
            for _ in range(10):
                await asyncio.sleep(0)
    assert heard == "abcdefghijklmnop"
    # What came behind that waits too.
    assert turns == 3


async def test_a_reader_that_stays_away_makes_the_backend_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_WAITING_OUTPUTS", 4)
    backend = Bursts("x" * 100)
    async with of(backend) as reading:
        heard = len(await reading.read())
        for _ in range(100):
            await asyncio.sleep(0)
        # Three of them beside the two items between which they came.
        assert backend.num_inline == 5
        while batch := await reading.read():
            heard += sum(bool(output.text) for _, output in batch)
    assert heard == 100
