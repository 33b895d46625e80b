"""The page below a path of a proxy."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import OpenPage, ServeFaces, ask


def test_below_a_path_the_page_talks_to_its_own_server(serve_faces: ServeFaces, open_page: OpenPage) -> None:
    address = serve_faces("--engine mocker --mocker-itl-ms 20", "--root-path", "/llm")["http"]
    page = open_page(f"{address}/llm")
    assert page.url == f"{address}/llm/"
    expect(page.locator("#base")).to_have_text(f"{address}/llm/v1")
    ask(page, "for ever")
    expect(page.locator(".outcome")).to_contain_text("ended: stop")
    expect(page.locator(".text")).to_have_text("for ever")
