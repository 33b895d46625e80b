"""What vLLM adds to OpenAI's fields, through the SDK: ids of tokens, cut prompts, usage in every chunk."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError
from tokenizers import Tokenizer, processors

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.fields.tokenizer import (
    TokenizerFields,
    carry_out,
    forbidden,
)
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.server.engines.mocker.tokenizer import BOS, byte_tokenizer
from tests.backend.decoding import toy_tokenizers as toy
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import sdk

MODEL = "mocker"
JAPANESE = "東京は日本"
HI = [{"role": "user", "content": JAPANESE}]
RENDERED = list(f"user: {JAPANESE}\nassistant: ".encode())
IDS: dict[str, Any] = {"return_token_ids": True}
EOS = 257


def beginning_with_bos() -> BackendTokenizer:
    """The mocker's, which then begins every text with <|bos|>."""
    tokenizer = Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode())
    tokenizer.post_processor = processors.TemplateProcessing("<|bos|> $A", special_tokens=[("<|bos|>", BOS)])
    return BackendTokenizer(tokenizer)


async def test_ids_of_prompts_and_answers_stand_in_the_choices_of_completions(
    text_backend: TextBackend,
) -> None:
    prompts = [JAPANESE, "bc"]
    async with sdk(text_backend) as client:
        asked = {"model": MODEL, "prompt": prompts, "n": 2, "max_tokens": 40, "extra_body": IDS}
        whole = await client.completions.create(**asked)
        told: list[list[int]] = [[] for _ in range(4)]
        prompt_ids: dict[int, list[int]] = {}
        async for chunk in await client.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                told[choice.index] += choice.model_extra["token_ids"]
                if "prompt_token_ids" in choice.model_extra:
                    assert choice.index not in prompt_ids, "told once"
                    prompt_ids[choice.index] = choice.model_extra["prompt_token_ids"]
    for choice in whole.choices:
        expected = list(prompts[choice.index // 2].encode())
        assert choice.model_extra["prompt_token_ids"] == prompt_ids[choice.index] == expected
        assert choice.model_extra["token_ids"] == told[choice.index] == [*expected, EOS]


async def test_ids_of_the_prompt_stand_beside_the_choices_of_chat(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        asked = {"model": MODEL, "messages": HI, "n": 2, "extra_body": IDS}
        whole = await client.chat.completions.create(**asked)
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
    told: list[list[int]] = [[], []]
    for chunk in chunks:
        for choice in chunk.choices:
            told[choice.index] += choice.model_extra["token_ids"]
    assert [chunk.model_extra.get("prompt_token_ids") for chunk in chunks] == [
        RENDERED,
        *[None] * (len(chunks) - 1),
    ]
    assert whole.model_extra["prompt_token_ids"] == RENDERED
    assert told == [choice.model_extra["token_ids"] for choice in whole.choices] == [[*RENDERED, EOS]] * 2


def test_ids_come_while_text_is_withheld() -> None:
    choice, plain = Choice(0, None, with_token_ids=True), Choice(0, None)
    for each in (choice, plain):
        each.add(BackendOutput(token_ids=[7, 8], text=""))
    assert (choice.has_news, choice.token_ids, choice.num_tokens) == (True, [7, 8], 2)
    assert (plain.has_news, plain.token_ids, plain.num_tokens) == (False, None, 2)


async def test_ids_come_only_when_asked_for(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        answer = await client.completions.create(model=MODEL, prompt="abc")
    assert not {"token_ids", "prompt_token_ids"} & answer.choices[0].model_extra.keys()


async def test_log_probabilities_can_name_tokens_by_id(text_backend: TextBackend) -> None:
    by_id = {"return_tokens_as_token_ids": True}
    async with sdk(text_backend) as client:
        chat = await client.chat.completions.create(
            model=MODEL, messages=HI, logprobs=True, top_logprobs=2, max_tokens=2, extra_body=by_id
        )
        columns = await client.completions.create(
            model=MODEL, prompt="東x", logprobs=1, max_tokens=4, extra_body=by_id
        )
    content = chat.choices[0].logprobs.content
    assert [row.token for row in content] == [f"token_id:{token}" for token in RENDERED[:2]]
    assert all(top.token.startswith("token_id:") for row in content for top in row.top_logprobs)
    logprobs = columns.choices[0].logprobs
    assert logprobs.tokens == [f"token_id:{token}" for token in "東x".encode()]
    assert all(key.startswith("token_id:") for top in logprobs.top_logprobs for key in top)
    assert logprobs.text_offset == [0, 1, 2, 3]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_chosen_tokens_are_scored_beside_the_alternatives(
    text_backend: TextBackend, is_stream: bool
) -> None:
    asked = {
        "model": MODEL,
        "prompt": ["abc", "de"],
        "logprobs": 1,
        "max_tokens": 2,
        "extra_body": {"logprob_token_ids": [ord("a"), ord("z")], "return_tokens_as_token_ids": True},
    }
    async with sdk(text_backend) as client:
        if is_stream:
            chunks = [chunk async for chunk in await client.completions.create(**asked, stream=True)]
        else:
            chunks = [await client.completions.create(**asked)]
    rows = [row for chunk in chunks for choice in chunk.choices for row in choice.logprobs.top_logprobs]
    assert len(rows) == 4
    for row in rows:
        assert {f"token_id:{ord('a')}", f"token_id:{ord('z')}"} <= row.keys()
        assert len(row) in (2, 3)


@pytest.mark.parametrize(
    ("extra", "kept"),
    [
        ({"truncate_prompt_tokens": 4}, "defg"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, "abcd"),
        ({"truncate_prompt_tokens": 40}, "abcdefg"),
        ({"truncate_prompt_tokens": -1}, "abcdefg"),
    ],
)
@pytest.mark.parametrize("prompt", ["abcdefg", list(b"abcdefg"), ["abcdefg", list(b"abcdefg")]])
async def test_a_prompt_is_cut_to_so_many_tokens(
    text_backend: TextBackend, prompt: object, extra: dict[str, object], kept: str
) -> None:
    async with sdk(text_backend) as client:
        answer = await client.completions.create(model=MODEL, prompt=prompt, extra_body=extra)
        echo = await client.completions.create(model=MODEL, prompt=prompt, extra_body=extra, echo=True)
    assert {choice.text for choice in answer.choices} == {kept}
    assert {choice.text for choice in echo.choices} == {kept * 2}
    assert answer.usage.prompt_tokens == len(kept) * len(answer.choices)


async def test_a_conversation_is_cut_to_what_there_is_room_for(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(max_model_len=64)
    long = [{"role": "user", "content": "x" * 100 + "the end"}]
    async with sdk(backend) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.chat.completions.create(model=MODEL, messages=long)
        assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "messages")
        for number, most in ((10, 54), (None, 63)):
            answer = await client.chat.completions.create(
                model=MODEL, messages=long, max_tokens=number, extra_body={"truncate_prompt_tokens": -1}
            )
            assert answer.usage.prompt_tokens == most
        cut = await client.chat.completions.create(
            model=MODEL, messages=long, extra_body={"truncate_prompt_tokens": 19}
        )
    assert cut.choices[0].message.content == "the end\nassistant: "


async def test_special_tokens_are_left_out_when_told_and_an_empty_text_may_have_some(
    text_backend: TextBackend,
) -> None:
    text_backend.tokenizer = beginning_with_bos()
    async with sdk(text_backend) as client:

        async def prompt_ids(prompt: object, **extra: object) -> list[int]:
            answer = await client.completions.create(
                model=MODEL, prompt=prompt, max_tokens=1, extra_body=IDS | extra
            )
            return answer.choices[0].model_extra["prompt_token_ids"]

        assert await prompt_ids("") == [BOS]
        assert await prompt_ids("op") == [BOS, *b"op"]
        assert await prompt_ids("op", add_special_tokens=False) == [*b"op"]
        # Of a text that is cut, the special tokens are a part.
        assert await prompt_ids("op", truncate_prompt_tokens=2) == [*b"op"]
        assert await prompt_ids("op", truncate_prompt_tokens=2, truncation_side="right") == [BOS, *b"o"]
        assert await prompt_ids([5, 6], add_special_tokens=False) == [5, 6]
        with pytest.raises(BadRequestError) as refusal:
            await prompt_ids("", add_special_tokens=False)
    assert refusal.value.param == "prompt"


@pytest.mark.parametrize("extra", [{}, {"add_special_tokens": False}, {"truncate_prompt_tokens": 3}])
async def test_a_prompt_of_no_tokens_is_refused(text_backend: TextBackend, extra: dict[str, object]) -> None:
    async with sdk(text_backend) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.completions.create(model=MODEL, prompt="", extra_body=extra)
    assert refusal.value.param == "prompt"


async def test_every_chunk_has_usage_when_asked_for(text_backend: TextBackend) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with sdk(text_backend) as client:
        stream = await client.completions.create(
            model=MODEL, prompt=["abc", "defgh"], n=2, stream=True, extra_body={"stream_options": options}
        )
        chunks = [chunk async for chunk in stream]
        chat = await client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, extra_body={"stream_options": options}
        )
        chat_chunks = [chunk async for chunk in chat]
    last = {
        choice.index: (chunk.usage.prompt_tokens, chunk.usage.completion_tokens, chunk.usage.total_tokens)
        for chunk in chunks
        for choice in chunk.choices
    }
    assert last == {0: (3, 4, 7), 1: (3, 4, 7), 2: (5, 6, 11), 3: (5, 6, 11)}
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (8, 20)
    counts = [chunk.usage.completion_tokens for chunk in chat_chunks]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert {chunk.usage.prompt_tokens for chunk in chat_chunks} == {len(RENDERED)}


async def test_words_are_forbidden_wherever_they_stand(text_backend: TextBackend) -> None:
    tokenizer = BackendTokenizer(Tokenizer.from_str(toy.byte_level().to_str()))
    sequences = [list(each.token_ids) for each in await forbidden(["stream", " 東京"], tokenizer)]
    assert [tokenizer.decode(ids) for ids in sequences][:2] == ["stream", " stream"]
    assert "東京" in [tokenizer.decode(ids) for ids in sequences]
    # One token per byte: what ends in the word is forbidden with it.
    (alone,) = await forbidden(["abc"], text_backend.tokenizer)
    assert list(alone.token_ids) == list(b"abc")
    many = await forbidden(["x" * 20_000, "y"], text_backend.tokenizer)
    assert [len(each.token_ids) for each in many] == [20_000, 1]


async def test_an_engine_that_forbids_no_words_refuses_them_by_name(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.completions.create(model=MODEL, prompt="x", extra_body={"bad_words": ["y"]})
    assert (refusal.value.param, refusal.value.code) == ("bad_words", "unsupported")


@pytest.mark.parametrize("family", [toy.byte_level, toy.byte_fallback, toy.word_piece])
async def test_special_tokens_without_spaces_are_refused_where_the_tokenizer_writes_some(
    text_backend: TextBackend, family: Any
) -> None:
    text_backend.tokenizer = BackendTokenizer(family())
    fields = TokenizerFields(spaces_between_special_tokens=False)
    prompts = [pb.BackendServiceGenerateRequest(text="the")]
    if family is not toy.word_piece:
        await carry_out(fields, prompts, text_backend)
        return
    with pytest.raises(ValueError, match="spaces_between_special_tokens"):
        await carry_out(fields, prompts, text_backend)
