"""POST /v1/embeddings, mostly through the OpenAI SDK."""

from __future__ import annotations

import asyncio
import base64
import math

import httpx2
import openai
import orjson
import pytest

from tests.backend.frontends.http_api.serving import sdk, serving_http

OWN_SIZE = 64


async def test_one_text_as_the_sdk_asks_for_it(text_backend):
    async with sdk(text_backend) as client:
        answer = await client.embeddings.create(model="mocker", input="hello")
    assert answer.object == "list"
    assert answer.model == "mocker"
    assert [(each.index, each.object, len(each.embedding)) for each in answer.data] == [
        (0, "embedding", OWN_SIZE)
    ]
    assert math.hypot(*answer.data[0].embedding) == pytest.approx(1.0, abs=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 5


async def test_texts_and_token_ids_mean_the_same(text_backend):
    inputs = ["one", "two"]
    token_ids = [list(each.encode()) for each in inputs]
    async with sdk(text_backend) as client:
        texts = await client.embeddings.create(model="mocker", input=inputs)
        lists = await client.embeddings.create(model="mocker", input=token_ids)
        single = await client.embeddings.create(model="mocker", input=token_ids[1])
    assert [each.embedding for each in texts.data] == [each.embedding for each in lists.data]
    assert single.data[0].embedding == texts.data[1].embedding
    assert texts.data[0].embedding != texts.data[1].embedding


async def test_floats_and_base64_carry_the_same_numbers(text_backend):
    async with sdk(text_backend) as client:
        floats = await client.embeddings.create(model="mocker", input="hello", encoding_format="float")
        encoded = await client.embeddings.create(model="mocker", input="hello", encoding_format="base64")
        decoded = await client.embeddings.create(model="mocker", input="hello")
    assert isinstance(encoded.data[0].embedding, str)
    assert len(base64.b64decode(encoded.data[0].embedding)) == 4 * OWN_SIZE
    assert floats.data[0].embedding == pytest.approx(decoded.data[0].embedding, abs=0)


async def test_fewer_dimensions(text_backend):
    async with sdk(text_backend) as client:
        answer = await client.embeddings.create(model="mocker", input=["a", "b"], dimensions=3)
    assert [len(each.embedding) for each in answer.data] == [3, 3]


async def test_a_thousand_inputs_come_back_in_order(text_backend):
    texts = [f"text {place}" for place in range(1000)]
    async with sdk(text_backend) as client:
        answer = await client.embeddings.create(model="mocker", input=texts)
        alone = await client.embeddings.create(model="mocker", input=texts[777])
    assert [each.index for each in answer.data] == list(range(1000))
    assert answer.data[777].embedding == alone.data[0].embedding


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("input", {"input": ""}),
        ("input", {"input": []}),
        ("input", {"input": 7}),
        ("input", {"input": None}),
        ("input[1]", {"input": ["a", ""]}),
        ("input[1]", {"input": ["a", 7]}),
        ("input[1]", {"input": ["a", []]}),
        ("input[0]", {"input": [[-1]]}),
        ("input[1]", {"input": [1, "a"]}),
        ("input[1]", {"input": [[1], [258]]}),
        ("input[0]", {"input": ["a" * 4097]}),
        ("input", {"input": ["a"] * 2049}),
        ("dimensions", {"dimensions": 0}),
        ("dimensions", {"dimensions": OWN_SIZE + 1}),
        ("dimensions", {"dimensions": "many"}),
        ("encoding_format", {"encoding_format": "hex"}),
    ],
)
async def test_what_is_wrong_is_named(text_backend, param, fields):
    async with sdk(text_backend) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/embeddings", body={"input": "a", **fields}, cast_to=object)
    assert caught.value.param == param


async def test_too_long_an_input_has_the_code_that_clients_look_for(text_backend):
    async with sdk(text_backend) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model="mocker", input="a" * 5000)
    assert caught.value.code == "context_length_exceeded"


async def test_an_unknown_model_is_not_found(text_backend):
    async with sdk(text_backend) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.embeddings.create(model="other", input="a")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


async def test_without_a_name_the_answer_has_the_models_own(text_backend):
    async with serving_http(text_backend) as face, httpx2.AsyncClient() as client:
        answer = await client.post(f"{face.address}/v1/embeddings", json={"input": "a"})
    assert orjson.loads(answer.content)["model"] == "mocker"


async def test_a_caller_who_leaves_ends_the_work(start_backend):
    backend, serving = await start_backend(mocker_ttft_ms=5000.0)
    async with sdk(backend) as client:
        call = asyncio.create_task(client.embeddings.create(model="mocker", input="a"))
        await serving.until(lambda load: load.waiting == 1)
        call.cancel()
        await serving.until_idle(3)


async def test_the_end_of_the_server_is_said_to_who_waits(start_backend):
    backend, serving = await start_backend(mocker_ttft_ms=5000.0)
    async with serving_http(backend) as face, httpx2.AsyncClient() as client:
        call = asyncio.create_task(client.post(f"{face.address}/v1/embeddings", json={"input": "a"}))
        await serving.until(lambda load: load.waiting == 1)
        await face.drain(0.05)
        assert (await call).status_code == 503
        await serving.until_idle(3)
