from __future__ import annotations

import asyncio

import pytest
from openai import (
    APIError,
    APIStatusError,
    AsyncOpenAI,
    AsyncStream,
    BadRequestError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    RateLimitError,
)
from openai.types import Completion

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import sdk

MODEL = "mocker"
PROMPT_IDS = list(b"one two")


async def endless(client: AsyncOpenAI) -> AsyncStream[Completion]:
    extra = {"ignore_eos": True}
    return await client.completions.create(
        model=MODEL, prompt="for ever", max_tokens=4000, stream=True, extra_body=extra
    )


@pytest.mark.parametrize("prompt", ["one two", PROMPT_IDS])
async def test_text_and_token_ids_are_answered(text_backend: TextBackend, prompt: object) -> None:
    async with sdk(text_backend) as client:
        answer = await client.completions.create(model=MODEL, prompt=prompt)
    assert [choice.text for choice in answer.choices] == ["one two"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "text_completion"


@pytest.mark.parametrize("prompt", [["ab", "cd", "ef"], [list(b"ab"), list(b"cd"), list(b"ef")]])
async def test_a_batch_of_prompts_is_answered_in_order(text_backend: TextBackend, prompt: object) -> None:
    async with sdk(text_backend) as client:
        answer = await client.completions.create(model=MODEL, prompt=prompt, n=2)
        stream = await client.completions.create(
            model=MODEL, prompt=prompt, n=2, stream=True, stream_options={"include_usage": True}
        )
        texts = [""] * 6
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
            usage = chunk.usage
    assert [choice.text for choice in answer.choices] == ["ab", "ab", "cd", "cd", "ef", "ef"]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert texts == [choice.text for choice in answer.choices]
    assert usage == answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (6, 18)


async def test_only_sixteen_tokens_come_when_nothing_is_said(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        answer = await client.completions.create(model=MODEL, prompt="0123456789abcdefgh")
    assert answer.choices[0].text == "0123456789abcdef"
    assert answer.choices[0].finish_reason == "length"


async def test_logprobs_come_in_columns(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        answer = await client.completions.create(model=MODEL, prompt="abc", max_tokens=3, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "c"]
    assert logprobs.text_offset == [0, 1, 2]
    assert [len(top) for top in logprobs.top_logprobs or []] == [2, 2, 2]
    assert all(value <= 0 for value in logprobs.token_logprobs or [])


@pytest.mark.parametrize("prompt", ["one two", PROMPT_IDS, [PROMPT_IDS, "one two"]])
async def test_the_prompt_comes_before_an_answer_that_echoes(
    text_backend: TextBackend, prompt: object
) -> None:
    async with sdk(text_backend) as client:
        answer = await client.completions.create(model=MODEL, prompt=prompt, echo=True, n=2, max_tokens=3)
        stream = await client.completions.create(
            model=MODEL, prompt=prompt, echo=True, n=2, max_tokens=3, stream=True
        )
        texts = [""] * len(answer.choices)
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    assert {choice.text for choice in answer.choices} == {"one twoone"}
    assert texts == [choice.text for choice in answer.choices]


async def test_an_echo_hides_special_tokens_unless_asked(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        for extra, text in (({}, "xx"), ({"skip_special_tokens": False}, "<|bos|>xx")):
            answer = await client.completions.create(
                model=MODEL, prompt=[256, ord("x")], echo=True, max_tokens=1, extra_body=extra
            )
            assert answer.choices[0].text == text


async def test_an_echo_without_tokens_is_the_prompt(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        answer = await client.completions.create(model=MODEL, prompt="abc", echo=True, max_tokens=0)
    assert answer.choices[0].text == "abc"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        3,
        0,
        3,
    )


async def test_what_vllm_adds_reaches_the_engine(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        stopped = await client.completions.create(
            model=MODEL, prompt="abcdef", extra_body={"stop_token_ids": [ord("d")], "top_k": 1}
        )
        floored = await client.completions.create(
            model=MODEL, prompt="abc", stop=["b"], extra_body={"min_tokens": 4, "ignore_eos": True}
        )
    assert stopped.choices[0].text == "abc"
    assert stopped.choices[0].model_extra == {"stop_reason": ord("d")}
    assert floored.choices[0].text == "abca"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"min_p": 2}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": [1]}, "stop[0]"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": "a"}}, "logit_bias.1"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"suffix": "end"}, "suffix"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [99999]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": ["x"] * 513}, "prompt"),
        ({"prompt": ["x"] * 9, "n": 128}, "n"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ],
)
async def test_what_is_wrong_is_a_bad_request_with_its_field(
    shared_sdk: AsyncOpenAI, body: dict[str, object], param: str
) -> None:
    with pytest.raises(BadRequestError) as refusal:
        await shared_sdk.completions.create(model=MODEL, prompt="x", extra_body=body)
    assert refusal.value.param == param
    assert refusal.value.type == "invalid_request_error"


async def test_unknown_fields_are_ignored(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        answer = await client.completions.create(
            model=MODEL,
            prompt="abc",
            user="me",
            extra_body={"no_such_field": 1, "echo": False, "top_p": None},
        )
    assert answer.choices[0].text == "abc"


async def test_a_request_keeps_the_callers_id_which_no_other_may_have_meanwhile(
    start_backend: StartBackend,
) -> None:
    backend, _ = await start_backend(mocker_itl_ms=20.0)
    named = {"request_id": "mine.1", "ignore_eos": True}
    async with sdk(backend) as client:
        stream = await client.completions.create(
            model=MODEL, prompt=["x", "y"], max_tokens=4000, stream=True, extra_body=named
        )
        assert (await anext(aiter(stream))).id == "cmpl-mine.1"
        assert stream.response.headers["x-request-id"] == "cmpl-mine.1"
        with pytest.raises(ConflictError) as refusal:
            await client.completions.create(model=MODEL, prompt="x", extra_body=named)
        await stream.close()
    assert (refusal.value.code, refusal.value.param) == ("duplicate_id", "request_id")


async def test_an_unknown_model_is_not_found(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        with pytest.raises(NotFoundError) as refusal:
            await client.completions.create(model="gpt-none", prompt="x", stream=True)
    assert (refusal.value.param, refusal.value.code) == ("model", "model_not_found")


async def test_a_full_queue_says_when_to_try_again(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(max_num_seqs=1, max_num_queued_reqs=1, mocker_itl_ms=20.0)
    async with sdk(backend) as client:
        running = await endless(client)
        await anext(aiter(running))
        waiting = asyncio.create_task(endless(client))
        await serving.until(lambda load: load.waiting == 1)
        with pytest.raises(RateLimitError) as refusal:
            await client.completions.create(model=MODEL, prompt="x")
        waiting.cancel()
        await running.close()
        assert int(refusal.value.response.headers["retry-after"]) >= 1
        assert refusal.value.code == "rate_limit_exceeded"
        await serving.until_idle()


async def test_a_prompt_beyond_the_context_has_openais_code(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(max_model_len=64)
    async with sdk(backend) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.completions.create(model=MODEL, prompt="x" * 65)
    assert refusal.value.code == "context_length_exceeded"
    assert refusal.value.body["message"].startswith("prompt: ")


async def test_the_deadline_is_a_gateway_timeout(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_ttft_ms=30_000.0)
    async with sdk(backend, timeout=0.2) as client:
        with pytest.raises(InternalServerError) as refusal:
            await client.completions.create(model=MODEL, prompt="x")
        assert refusal.value.status_code == 504
        assert refusal.value.code == "deadline_exceeded"
        await serving.until_idle()


async def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(mocker_fault="step:3")
    async with sdk(backend) as client:
        stream = await client.completions.create(model=MODEL, prompt="abcdef", stream=True)
        texts: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                texts.extend(choice.text for choice in chunk.choices)

        with pytest.raises(APIError) as failure:
            await read()
    assert "".join(texts) == "ab"
    assert not isinstance(failure.value, APIStatusError)
    assert failure.value.type == "server_error"


async def test_a_failed_prompt_of_a_batch_fails_the_answer_and_frees_the_others(
    start_backend: StartBackend,
) -> None:
    backend, serving = await start_backend(mocker_itl_ms=5.0)
    async with sdk(backend) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.completions.create(
                model=MODEL, prompt=["for ever", ""], max_tokens=4000, extra_body={"ignore_eos": True}
            )
        assert refusal.value.param == "prompt[1]"
        await serving.until_idle()


async def test_a_caller_who_leaves_a_stream_frees_the_engine(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_itl_ms=5.0)
    async with sdk(backend) as client:
        stream = await endless(client)
        await anext(aiter(stream))
        assert (await serving.load()).running == 1
        await stream.close()
        await serving.until_idle()


async def test_a_caller_who_leaves_before_the_first_token_frees_the_engine(
    start_backend: StartBackend,
) -> None:
    backend, serving = await start_backend(mocker_ttft_ms=30_000.0)
    async with sdk(backend) as client:
        asking = asyncio.create_task(client.completions.create(model=MODEL, prompt=["a", "b"]))
        await serving.until(lambda load: load.running + load.waiting == 2)
        asking.cancel()
        await serving.until_idle()


async def test_many_callers_at_once_get_their_own_text(text_backend: TextBackend) -> None:
    prompts = [f"caller {number} says {'x' * number}" for number in range(40)]
    async with sdk(text_backend) as client:

        async def ask(prompt: str) -> str:
            stream = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=100, stream=True)
            return "".join([choice.text async for chunk in stream for choice in chunk.choices])

        assert await asyncio.gather(*(ask(prompt) for prompt in prompts)) == prompts
