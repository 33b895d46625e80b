"""/tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from tokenizers import Tokenizer, processors

from enginewire import v1 as pb
from enginewire.backend.frontends.text_backend import MAX_INLINE_CHARACTERS, TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from tests.backend.decoding import toy_tokenizers as toy
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.openai.echoing import with_template
from tests.backend.frontends.http_api.serving import serving_http
from tests.patience import PATIENCE_SECONDS

JAPANESE = "東京は日本の首都です。"
MESSAGES = [{"role": "user", "content": JAPANESE}]


@pytest.fixture
async def http(text_backend: TextBackend) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving_http(text_backend) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as client,
    ):
        yield client


def llama_like() -> BackendTokenizer:
    """A tokenizer that begins every text with <s>."""
    tokenizer = Tokenizer.from_str(toy.byte_fallback().to_str())
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return BackendTokenizer(tokenizer)


async def test_a_text_becomes_tokens_and_tokens_a_text(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/tokenize", json={"prompt": JAPANESE})
    tokens = list(JAPANESE.encode())
    assert answer.json() == {
        "count": len(tokens),
        "max_model_len": 4096,
        "tokens": tokens,
        "token_strs": None,
    }
    text = await http.post("/detokenize", json={"model": "mocker", "tokens": tokens})
    assert text.json() == {"prompt": JAPANESE}


async def test_a_conversation_becomes_the_tokens_that_a_chat_completion_sends(
    http: httpx2.AsyncClient,
) -> None:
    asked = {"model": "mocker", "messages": MESSAGES}
    answer = (await http.post("/tokenize", json=asked)).json()
    chat = (await http.post("/v1/chat/completions", json=asked | {"max_tokens": 1})).json()
    assert answer["count"] == len(answer["tokens"]) == chat["usage"]["prompt_tokens"]
    text = await http.post("/detokenize", json={"tokens": answer["tokens"]})
    assert text.json() == {"prompt": f"user: {JAPANESE}\nassistant: "}


async def test_tools_are_a_part_of_a_conversation(text_backend: TextBackend) -> None:
    backend = with_template(text_backend, "{% for tool in tools %}{{ tool.function.name }};{% endfor %}")
    tools = [{"type": "function", "function": {"name": name}} for name in ("get_time", "get_weather")]
    async with serving_http(backend) as face, httpx2.AsyncClient(base_url=face.address) as client:
        answer = await client.post("/tokenize", json={"messages": MESSAGES, "tools": tools})
    assert bytes(answer.json()["tokens"]) == b"get_time;get_weather;"


async def test_special_tokens_are_added_to_texts_unless_told_otherwise_and_shown(
    text_backend: TextBackend,
) -> None:
    text_backend.tokenizer = llama_like()
    async with serving_http(text_backend) as face, httpx2.AsyncClient(base_url=face.address) as client:
        asked = {"prompt": "the op", "return_token_strs": True}
        with_start = (await client.post("/tokenize", json=asked)).json()
        without = (await client.post("/tokenize", json=asked | {"add_special_tokens": False})).json()
        shown = (await client.post("/detokenize", json={"tokens": with_start["tokens"]})).json()
    assert with_start["token_strs"][:2] == ["<s>", "▁"]
    assert with_start["tokens"] == [1, *without["tokens"]]
    assert with_start["token_strs"][1:] == without["token_strs"]
    assert shown["prompt"].startswith("<s>")
    assert shown["prompt"].endswith("the op")


async def test_nothing_is_nothing(http: httpx2.AsyncClient) -> None:
    assert (await http.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
    assert (await http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_long_ones_and_many_at_once_get_their_own(http: httpx2.AsyncClient) -> None:
    texts = [str(number) * (MAX_INLINE_CHARACTERS // 3) for number in range(8)]

    async def there_and_back(text: str) -> str:
        tokens = (await http.post("/tokenize", json={"prompt": text})).json()["tokens"]
        return (await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]

    texts.append("x" * (MAX_INLINE_CHARACTERS + 1))
    strings = await http.post("/tokenize", json={"prompt": texts[-1], "return_token_strs": True})
    assert strings.json()["token_strs"] == list(texts[-1])
    assert await asyncio.gather(*map(there_and_back, texts)) == texts


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "return_token_strs": "yes"}, "return_token_strs"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "model": 7}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [97, "b"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [97, 99_999]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**40]}, "tokens[0]"),
        ("/detokenize", {"tokens": [97] * 5000 + [2**40]}, "tokens[5000]"),
    ],
)
async def test_what_is_wrong_is_a_bad_request_with_its_field(
    http: httpx2.AsyncClient, path: str, body: dict[str, object], param: str
) -> None:
    answer = await http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert (await http.post("/tokenize", json={"prompt": "x"})).json()["tokens"] == [ord("x")]


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})])
async def test_a_name_must_be_one_of_the_served(
    start_backend: StartBackend, tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    (tmp_path / "folder").mkdir()
    backend, serving = await start_backend(served_model_name=("echo", "alias"), adapter_folder=tmp_path)
    admin = pb.AdminServiceStub(serving.channel)
    await admin.LoadAdapter(pb.LoadAdapterRequest(name="polite", source="folder"))
    async with serving_http(backend) as face, httpx2.AsyncClient(base_url=face.address) as client:
        for name in ("echo", "alias", "polite", "", None):
            assert (await client.post(path, json=body | {"model": name})).status_code == 200
        refused = await client.post(path, json=body | {"model": "another"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_model_without_a_template_has_no_conversations(text_backend: TextBackend) -> None:
    text_backend.tokenizer = llama_like()
    async with serving_http(text_backend) as face, httpx2.AsyncClient(base_url=face.address) as client:
        refused = await client.post("/tokenize", json={"messages": MESSAGES})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


async def test_a_body_over_the_limit_and_a_form_are_refused(text_backend: TextBackend) -> None:
    async with (
        serving_http(text_backend, max_message_bytes=4096) as face,
        httpx2.AsyncClient(base_url=face.address) as client,
    ):
        for path in ("/tokenize", "/detokenize"):
            assert (await client.post(path, json={"prompt": "x" * 4096})).status_code == 413
            assert (await client.post(path, data={"prompt": "x"})).status_code == 415
