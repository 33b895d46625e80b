"""The pictures of the page in the documentation: `ENGINEWIRE_SCREENSHOTS=1 make test-browser` writes them."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.backend.our_processes import until
from tests.browser.conftest import OpenPage, ServeFaces, ask
from tests.repository import ROOT

IS_WRITTEN = bool(os.environ.get("ENGINEWIRE_SCREENSHOTS"))
# So that the charts have something to show.
WARM_UP_MS = 40_000 if IS_WRITTEN else 0
QUESTIONS = ["What does Drain do?", "What is a stop string?", "Who counts the tokens?"]
SCHEMES = ("light", "dark")
VIEWPORT = {"width": 1280, "height": 1222}
MOST_BYTES = 150_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return ROOT / "docs" / "images" if IS_WRITTEN else tmp_path


@contextmanager
def three_at_work(address: str) -> Iterator[None]:
    """Callers who ask again as soon as they have an answer."""
    is_over = threading.Event()

    def keep_asking(question: str) -> None:
        messages = [{"role": "user", "content": question}]
        body = {"messages": messages, "max_tokens": 800, "ignore_eos": True, "temperature": 0.7}
        while not is_over.is_set():
            httpx2.post(f"{address}/v1/chat/completions", json=body, timeout=120).raise_for_status()

    callers = [threading.Thread(target=keep_asking, args=[question]) for question in QUESTIONS]
    for caller in callers:
        caller.start()
    try:
        yield
    finally:
        is_over.set()
        for caller in callers:
            caller.join()


def take(page: Page, scheme: str, folder: Path) -> bool:
    """Write the picture; False when there were not three requests in it."""
    page.emulate_media(color_scheme=scheme)
    page.locator("#tokens .token").nth(4).click()
    decoding = page.locator('#rows [data-phase="decode"]')
    before = decoding.count()
    taken = page.context.new_cdp_session(page).send(
        "Page.captureScreenshot", {"format": "webp", "quality": 82, "captureBeyondViewport": False}
    )
    picture = base64.b64decode(taken["data"])
    assert 5_000 < len(picture) < MOST_BYTES
    (folder / f"page-{scheme}.webp").write_bytes(picture)
    return before == decoding.count() == len(QUESTIONS)


def test_pictures_show_the_page_with_three_requests_at_work(
    serve_faces: ServeFaces, open_page: OpenPage, folder: Path
) -> None:
    address = serve_faces("--model builtin:demo --num-kv-blocks 240")["http"]
    page = open_page(address, viewport=VIEWPORT)
    page.fill("#temperature", "0.8")
    page.fill("#seed", "7")
    with three_at_work(address):
        expect(page.locator('#rows [data-phase="decode"]')).to_have_count(len(QUESTIONS))
        page.wait_for_timeout(WARM_UP_MS)
        for question in ("What is Enginewire?", "What does Drain do?"):
            ask(page, question, chat=True)
            expect(page.locator(".answer").last.locator(".outcome")).to_contain_text("ended")
        for scheme in SCHEMES:
            until(lambda scheme=scheme: take(page, scheme, folder), within=120)  # type: ignore[misc]  # a default
            assert (folder / f"page-{scheme}.webp").read_bytes()[8:12] == b"WEBP"
