"""Every face decodes an answer behind its prompt, whichever tokenizer the model has.

The mocker says the tokens of the prompt again, so the text of both is known.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from tests.backend.commands.test_generate import run as run_command
from tests.backend.commands.test_jsonl import run as run_lines, text_of as text_of_lines
from tests.backend.decoding import toy_tokenizers as toy
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import sdk
from tests.backend.frontends.test_grpc_service import Dial, ask, dial, items_of, text_of

__all__ = ["dial"]

MODEL = "mocker"
LLAMA = toy.byte_fallback()
PROMPT = LLAMA.encode("a stream").ids
FACE = [LLAMA.token_to_id(f"<0x{byte:02X}>") for byte in "🙈".encode()]
# The mocker begins with what completes the character at the end.
SPLIT = [*FACE[2:], LLAMA.token_to_id("a"), *FACE[:2]]


@pytest.fixture
async def backend(start_backend: StartBackend) -> TextBackend:
    """A Llama-like tokenizer in front of the mocker."""
    mocker, _ = await start_backend(engine=MockerEngine(MockerOptions(vocab_size=400)))
    tokenizer = BackendTokenizer(LLAMA)
    return TextBackend(Backend(mocker.backend.engines, tokenizer.vocabulary), tokenizer)


@pytest.mark.parametrize("prompt", ["a stream", PROMPT])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_completion_keeps_its_first_space(backend: TextBackend, prompt: object, n: int) -> None:
    async with sdk(backend) as client:
        asked = {"model": MODEL, "prompt": prompt, "max_tokens": len(PROMPT), "n": n}
        plain = await client.completions.create(**asked)
        echoed = await client.completions.create(**asked, echo=True)
    assert [choice.text for choice in plain.choices] == [" a stream"] * n
    assert [choice.text for choice in echoed.choices] == ["a stream a stream"] * n


@pytest.mark.parametrize(("max_tokens", "text"), [(0, ""), (1, ""), (2, "🙈"), (4, "🙈a")])
async def test_prompt_and_answer_are_the_text_of_the_whole(
    backend: TextBackend, max_tokens: int, text: str
) -> None:
    async with sdk(backend) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=SPLIT, max_tokens=max_tokens, echo=True, extra_body={"ignore_eos": True}
        )
    whole = toy.expected_text(LLAMA, SPLIT + SPLIT[:max_tokens], skip=True)
    assert answer.choices[0].text == whole
    assert whole.removeprefix("\ufffd\ufffda").startswith(text)


async def test_the_other_faces_do_the_same(backend: TextBackend, dial: Dial, tmp_path: Path) -> None:
    length = len(PROMPT)
    line = {"id": "a", "prompt": "a stream", "stop_conditions": {"max_tokens": length}}
    _, lines = await run_lines(backend, tmp_path, line)
    assert text_of_lines(lines, "a") == " a stream"
    code, printed, _ = await run_command(backend, "a stream", max_tokens=length)
    assert (code, printed) == (0, " a stream\n")
    asked = ask("a stream", stop_conditions=pb.StopConditions(max_tokens=length))
    assert text_of(await items_of(await dial(backend), asked)) == " a stream"


async def test_a_resumed_answer_goes_on_behind_prompt_and_tokens(backend: TextBackend, dial: Dial) -> None:
    begun = pb.ResumedChoice(index=0, generated_token_ids=SPLIT[:1])
    asked = pb.BackendServiceGenerateRequest(
        token_ids=True,
        request=pb.PreprocessedRequest(
            token_ids=SPLIT,
            stop_conditions=pb.StopConditions(max_tokens=3),
            resume=pb.Resume(choices=[begun], origin_lifetime_id="another"),
        ),
    )
    assert text_of(await items_of(await dial(backend), asked)) == "🙈a"
