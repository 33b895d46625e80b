"""Images in conversations: what engines get of them, through each API and from what its SDK sends."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx2
import pytest

from enginewire import v1 as pb
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.failures import InvalidRequest
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.openai.echoing import with_template
from tests.backend.frontends.http_api.serving import client_of
from tests.patience import PATIENCE_SECONDS

PLACE = "<image>"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}"
    + PLACE
    + "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
)
ONE, OTHER = b"\x89PNG one", b"\xff\xd8 other"
REMOTE = "https://example.org/cat.png"
MOST = 3


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


@dataclass(eq=False)
class SeeingMocker(MockerEngine):
    """A mocker that takes images as vLLM does: it repeats the prompt, and `seen` has what came beside it."""

    takes: tuple[str, ...] = ("image_url",)
    seen: list[pb.MultiModalItem] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def start(self, worker_id: int) -> pb.EngineConfig:
        config = await super().start(worker_id)
        config.capabilities.multi_modal_part_types[:] = self.takes
        return config

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        items = [item for part in request.multi_modal_data for item in part.items]
        for place, item in enumerate(items):
            path = f"multi_modal_data[0].items[{place}]"
            if place >= MOST:
                raise InvalidRequest(f"{path[:-3]}: too many images", field=path[:-3])
            if item.data == b"broken":
                raise InvalidRequest(f"{path}.data: no picture", field=f"{path}.data")
        if bytes(request.token_ids).count(PLACE.encode()) != len(items):
            raise InvalidRequest("multi_modal_data: does not fit", field="multi_modal_data")
        self.seen += items
        super().submit(request, context)


@dataclass
class Seeing:
    """A server whose engine takes images, and a caller of it."""

    engine: SeeingMocker
    client: httpx2.AsyncClient

    async def said(self, path: str, body: dict[str, object]) -> str:
        """The answer's text, which is the prompt as the engine got it."""
        answer = await self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        match path:
            case "/v1/chat/completions":
                return told["choices"][0]["message"]["content"]
            case "/v1/responses":
                return told["output"][0]["content"][0]["text"]
            case "/v1/messages":
                return told["content"][0]["text"]
        return told["choices"][0]["text"]

    async def refusal(self, path: str, body: dict[str, object]) -> dict[str, str | None]:
        """The error object of a bad request, which has reached no engine."""
        answer = await self.client.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert self.engine.seen == []
        return answer.json()["error"]


@pytest.fixture
async def seeing(start_backend: StartBackend) -> AsyncIterator[Seeing]:
    engine = SeeingMocker()
    backend, _ = await start_backend(engine=engine)
    async with client_of(with_template(backend, TEMPLATE)) as client:
        yield Seeing(engine, client)


def image_part(url: object, **more: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def chat(*parts: object, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 200, **more}


def text(said: str, kind: str = "text") -> dict[str, object]:
    return {"type": kind, "text": said}


BLOCK = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(ONE).decode()},
}
BY_URL = {"type": "image", "source": {"type": "url", "url": REMOTE}}
BOTH = {
    "/v1/chat/completions": chat(
        text("a "), image_part(data_url(ONE), detail="high"), text(" b "), image_part(REMOTE)
    ),
    "/enginewire/generate": chat(text("a "), image_part(data_url(ONE)), text(" b "), image_part(REMOTE)),
    "/v1/responses": {
        "input": [
            {
                "role": "user",
                "content": [
                    text("a ", "input_text"),
                    {"type": "input_image", "image_url": data_url(ONE), "detail": "auto"},
                    text(" b ", "input_text"),
                    {"type": "input_image", "image_url": REMOTE},
                ],
            }
        ]
    },
    "/v1/messages": {
        "max_tokens": 200,
        "messages": [{"role": "user", "content": [text("a "), BLOCK, text(" b "), BY_URL]}],
    },
}


@pytest.mark.parametrize("path", BOTH)
async def test_images_are_shown_in_their_places_and_go_to_the_engine_in_order(
    seeing: Seeing, path: str
) -> None:
    said = await seeing.said(path, BOTH[path])
    assert said == f"user:a {PLACE} b {PLACE};"
    assert seeing.engine.seen == [
        pb.MultiModalItem(data=ONE, media_type="image/png"),
        pb.MultiModalItem(url=REMOTE),
    ]


async def test_images_of_many_messages_and_choices_are_one_list(seeing: Seeing) -> None:
    messages = [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": [image_part(data_url(ONE))]},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": [text("And "), image_part(data_url(OTHER, "image/jpeg")), text("?")]},
    ]
    body = {"messages": messages, "n": 2, "max_tokens": 200, "temperature": 0}
    answer = (await seeing.client.post("/v1/chat/completions", json=body)).json()
    shown = f"system:Look.;user:{PLACE};assistant:I see.;user:And {PLACE}?;"
    assert [choice["message"]["content"] for choice in answer["choices"]] == [shown] * 2
    assert [item.data for item in seeing.engine.seen] == [ONE, OTHER]


async def test_an_answer_goes_on_with_the_text_behind_an_image(seeing: Seeing) -> None:
    body = chat(image_part(data_url(ONE)), text("I see"), continue_final_message=True)
    assert await seeing.said("/v1/chat/completions", body) == f"user:{PLACE}I see"


async def test_tokens_are_counted_with_a_place_for_each_image(seeing: Seeing) -> None:
    body = BOTH["/v1/chat/completions"]
    tokens = (await seeing.client.post("/tokenize", json={"messages": body["messages"]})).json()
    counted = await seeing.client.post("/v1/messages/count_tokens", json=BOTH["/v1/messages"])
    assert tokens["count"] == counted.json()["input_tokens"] == len(f"user:a {PLACE} b {PLACE};")
    assert seeing.engine.seen == []


IMAGE = "messages[0].content[0].image_url"


@pytest.mark.parametrize(
    ("part", "param", "message"),
    [
        ({"type": "image_url"}, IMAGE, "an object"),
        ({"type": "image_url", "image_url": data_url(ONE)}, IMAGE, "an object"),
        (image_part(None), f"{IMAGE}.url", "a string"),
        (image_part(""), f"{IMAGE}.url", "data:image/TYPE;base64,DATA"),
        (image_part("cat.png"), f"{IMAGE}.url", "a URL of http, https, file"),
        (image_part("https:cat"), f"{IMAGE}.url", "a URL of"),
        (image_part("gopher://a/cat.png"), f"{IMAGE}.url", "a URL of"),
        (image_part("https://a/" + "b" * 8192), f"{IMAGE}.url", "at most 8192 characters"),
        (image_part("data:image/png,abc"), f"{IMAGE}.url", "data:image/TYPE;base64,DATA"),
        (image_part("data:image/png;base64"), f"{IMAGE}.url", "data:image/TYPE;base64,DATA"),
        (image_part(data_url(ONE, "text/html")), f"{IMAGE}.url", "data:image/TYPE;base64,DATA"),
        (image_part("data:image/png;base64,"), f"{IMAGE}.url", "must not be empty"),
        (image_part("data:image/png;base64,AB=C"), f"{IMAGE}.url", "not in base64"),
        (image_part("data:image/png;base64,AB\nCD"), f"{IMAGE}.url", "not in base64"),
        (image_part("data:image/png;base64,é"), f"{IMAGE}.url", "not in base64"),
        (image_part(data_url(ONE), detail="low"), f"{IMAGE}.detail", "auto or high"),
        ({"type": "input_audio"}, "messages[0].content[0].type", "text or image_url"),
        (image_part(data_url(b"broken")), f"{IMAGE}.url", "no picture"),
    ],
)
async def test_what_is_no_image_is_refused_with_its_field(
    seeing: Seeing, part: dict[str, object], param: str, message: str
) -> None:
    error = await seeing.refusal("/v1/chat/completions", chat(part))
    assert error["param"] == param
    assert message in error["message"]
    assert error["message"].startswith(param)


async def test_of_several_images_the_one_at_fault_is_named(seeing: Seeing) -> None:
    body = chat(image_part(data_url(ONE)), text("x"), image_part(data_url(b"broken")), stream=True)
    error = await seeing.refusal("/v1/chat/completions", body)
    assert error["param"] == "messages[0].content[2].image_url.url"
    assert error["message"] == "messages[0].content[2].image_url.url: no picture"
    assert error["code"] == "invalid_request"
    too_many = await seeing.refusal("/v1/chat/completions", chat(*[image_part(data_url(ONE))] * 4))
    assert too_many["message"] == f"{IMAGE}.url: too many images"
    # A caller's text may look like a place for an image.
    fitting = await seeing.refusal("/v1/chat/completions", chat(text(PLACE), image_part(data_url(ONE))))
    assert fitting["message"] == "messages[0].content[1].image_url.url: does not fit"


@pytest.mark.parametrize(
    ("path", "part", "said"),
    [
        ("/v1/responses", {"type": "input_image", "file_id": "f"}, "input[0].content[0].file_id: not supp"),
        ("/v1/responses", {"type": "input_image"}, "input[0].content[0].image_url: must be a string"),
        (
            "/v1/responses",
            {"type": "input_image", "image_url": data_url(b"broken")},
            "input[0].content[0].image_url: no picture",
        ),
        (
            "/v1/responses",
            {"type": "input_image", "image_url": data_url(ONE), "detail": "low"},
            "input[0].content[0].detail: must be auto or high",
        ),
        ("/v1/messages", {"type": "image"}, "messages[0].content[0].source: must be an object"),
        (
            "/v1/messages",
            {"type": "image", "source": {"type": "file", "file_id": "f"}},
            "messages[0].content[0].source.type: must be base64 or url",
        ),
        (
            "/v1/messages",
            {"type": "image", "source": {"type": "base64", "media_type": "text/plain", "data": "AAAA"}},
            "messages[0].content[0].source.media_type: must begin with image/",
        ),
        (
            "/v1/messages",
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}},
            "messages[0].content[0].source.data: is not in base64",
        ),
        (
            "/v1/messages",
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/png",
                    "data": base64.b64encode(b"broken").decode(),
                },
            },
            "messages[0].content[0].source.data: no picture",
        ),
    ],
)
async def test_other_apis_name_their_own_fields(
    seeing: Seeing, path: str, part: dict[str, object], said: str
) -> None:
    message = {"role": "user", "content": [part]}
    body = {"input": [message]} if path == "/v1/responses" else {"messages": [message], "max_tokens": 9}
    assert (await seeing.refusal(path, body))["message"].startswith(said)


@pytest.mark.parametrize("path", BOTH)
async def test_a_template_that_shows_no_images_refuses_them(text_backend: TextBackend, path: str) -> None:
    async with client_of(text_backend) as client:
        answer = await client.post(path, json=BOTH[path])
    assert answer.status_code == 400
    assert "the model's chat template does not show images" in answer.json()["error"]["message"]


async def test_an_engine_that_takes_no_images_refuses_them_by_the_field(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(engine=SeeingMocker(takes=()))
    async with client_of(with_template(backend, TEMPLATE)) as client:
        body = chat(text("x"), image_part(data_url(ONE)))
        error = (await client.post("/v1/chat/completions", json=body)).json()["error"]
    assert error["param"] == "messages[0].content[1].image_url.url"
    assert error["code"] == "unsupported"


@pytest.mark.parametrize("takes", [("image_url",), ()], ids=["passed on", "refused"])
@pytest.mark.parametrize("path", BOTH)
async def test_nobody_here_opens_what_a_url_names(
    start_backend: StartBackend, path: str, takes: tuple[str, ...]
) -> None:
    """An engine may: vLLM's does, from the hosts that its operator names."""
    engine = SeeingMocker(takes=takes)
    backend, _ = await start_backend(engine=engine)
    opened: asyncio.Queue[bytes] = asyncio.Queue()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.put_nowait(await reader.readline())
        writer.close()

    async with (
        await asyncio.start_server(note, "127.0.0.1", 0) as listener,
        client_of(with_template(backend, TEMPLATE)) as client,
    ):
        port = listener.sockets[0].getsockname()[1]
        hosts = ("127.0.0.1", "localhost.", "0x7f000001", "[::ffff:127.0.0.1]", "a@127.0.0.1")
        urls = [f"http://{host}:{port}/cat.png" for host in hosts]
        for url in urls:
            body = json.loads(json.dumps(BOTH[path]).replace(REMOTE, url))
            answer = await client.post(path, json=body)
            assert answer.status_code == (200 if takes else 400), answer.text
        assert [item.url for item in engine.seen if item.url] == (urls if takes else [])
        # Whoever had come before would be the first.
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"the test\n")
        assert await asyncio.wait_for(opened.get(), PATIENCE_SECONDS) == b"the test\n"
        assert opened.empty()
        writer.close()


async def test_an_image_that_makes_the_body_too_large_is_refused(text_backend: TextBackend) -> None:
    async with client_of(text_backend, max_message_bytes=4096) as client:
        answer = await client.post("/v1/chat/completions", json=chat(image_part(data_url(bytes(4096)))))
    assert answer.status_code == 413
    assert "4096" in json.dumps(answer.json())


async def test_a_template_that_knows_parts_only_is_given_parts(start_backend: StartBackend) -> None:
    source = (
        "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part.type == 'text' %}"
        "{{ part.text }}{% endif %}{% endfor %};{% endfor %}"
    )
    backend, _ = await start_backend()
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}]
    async with client_of(with_template(backend, source)) as client:
        for more, said in (
            ({}, "user:hi;assistant:well;"),
            ({"continue_final_message": True}, "user:hi;assistant:well"),
        ):
            body = {"messages": messages, "max_tokens": 200, **more}
            answer = (await client.post("/v1/chat/completions", json=body)).json()
            assert answer["choices"][0]["message"]["content"] == said
