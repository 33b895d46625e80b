"""Pictures in a chat over HTTP, through a backend in front of the engine."""

from __future__ import annotations

import base64
import contextlib
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI

from tests.backend.our_processes import command, running, until
from tests.vllm_engine.live.conftest import VLLM, Server
from tests.vllm_engine.live.pictures.conftest import LIMITED, MOST
from tests.vllm_engine.live.pictures.test_pictures import TOKENS, asked, picture
from tests.vllm_engine.live.test_answers import outputs, tokens_of


@contextlib.contextmanager
def over_http(server: Server, folder: Path) -> Iterator[OpenAI]:
    """OpenAI's SDK at a backend in front of an engine."""
    log = folder / "log"
    argv = command("serve", "--target", server.target, "--http-port=0", f"--uds={folder}/b.sock")
    with log.open("wb") as stderr, running(argv, stderr=stderr):
        until(lambda: "listening on http" in log.read_text())
        address = re.search(r"http://\S+", log.read_text())
        assert address is not None
        with OpenAI(base_url=f"{address[0]}/v1", api_key="none", max_retries=0) as client:
            yield client


def chat(client: OpenAI, *parts: str | bytes, **more: object) -> tuple[list[int], list[int]]:
    """The ids of a prompt and of its greedy answer. Bytes are a picture, and so is a text that has `://`."""
    content = []
    for part in parts:
        url = f"data:image/png;base64,{base64.b64encode(part).decode()}" if isinstance(part, bytes) else part
        is_text = isinstance(part, str) and "://" not in part
        content.append(
            {"type": "text", "text": part} if is_text else {"type": "image_url", "image_url": {"url": url}}
        )
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_tokens=TOKENS,
        extra_body={"ignore_eos": True, "return_token_ids": True, **more},
    )
    return answer.prompt_token_ids, answer.choices[0].token_ids


def test_a_chat_over_http_is_answered_as_its_prompt_with_pictures(seeing, folder, tmp_path):
    one, other = picture(1), picture(2, (64, 64))
    with over_http(seeing, tmp_path) as client:
        found = [
            chat(client, "Who is ", one, " here?"),
            chat(client, one, " or ", other, "?"),
            chat(client, other, " or ", one, "?"),
        ]
    all_asked = [
        asked(folder, "Who is <image> here?\n", [one]),
        asked(folder, "<image> or <image>?\n", [one, other]),
        asked(folder, "<image> or <image>?\n", [other, one]),
    ]
    assert [prompt for prompt, _ in found] == [list(each.token_ids) for each in all_asked]
    assert [tokens for _, tokens in found] == [tokens_of(outputs(seeing, each)) for each in all_asked]
    assert found[1][1] != found[2][1]


@pytest.mark.parametrize(
    ("parts", "place", "said"),
    [
        (["Who is ", picture(1), b"no picture"], 2, "cannot identify image"),
        ([picture(1)] * (MOST + 1), 0, f"too many images, at most {MOST}"),
        (["Who is ", "http://127.0.0.1:9/cat.png"], 1, "this engine fetches nothing from there"),
    ],
)
def test_what_is_no_picture_is_refused_over_http_by_the_name_of_its_part(
    seeing, tmp_path, parts, place, said
):
    with over_http(seeing, tmp_path) as client:
        with pytest.raises(BadRequestError) as refusal:
            chat(client, *parts)
        assert chat(client, "Who is ", picture(1), " here?")
    assert refusal.value.param == f"messages[0].content[{place}].image_url.url"
    assert said in refusal.value.message


class Shelf(http.server.BaseHTTPRequestHandler):
    """Has one picture, and a way to it."""

    def do_GET(self) -> None:
        """The picture at /cat.png, and a redirection everywhere else."""
        self.send_response(200 if self.path == "/cat.png" else 302)
        self.send_header("location", "/cat.png")
        self.end_headers()
        self.wfile.write(picture(1) if self.path == "/cat.png" else b"")

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def shelf() -> Iterator[str]:
    """Its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shelf) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


def test_pictures_are_fetched_from_hosts_that_the_operator_names(start, folder, shelf, tmp_path):
    fetching = start(*VLLM[:-1], str(folder), f"{LIMITED} --allowed-media-domains 127.0.0.1")
    fetching.wait_ready()
    with over_http(fetching, tmp_path) as client:
        assert chat(client, "Who is ", f"{shelf}/cat.png", " here?") == chat(
            client, "Who is ", picture(1), " here?"
        )
        for url in (
            f"{shelf}/moved.png",
            f"{shelf}/cat.png".replace("127.0.0.1", "localhost"),
            "file:///etc",
        ):
            with pytest.raises(BadRequestError) as refusal:
                chat(client, url)
            assert refusal.value.param == "messages[0].content[0].image_url.url"
