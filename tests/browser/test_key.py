"""The page of a server that asks for API keys."""

from __future__ import annotations

from playwright.sync_api import expect

from enginewire.access.roles import Role
from tests.browser.conftest import SLOW, OpenPage, ServeFaces, ask
from tests.keys import ALL_KEYS, KEYS, UNKNOWN_KEY


def test_the_page_asks_for_a_key_and_its_tab_keeps_it(serve_faces: ServeFaces, open_page: OpenPage) -> None:
    keys = [word for key in ALL_KEYS for word in ("--api-key", key)]
    page = open_page(serve_faces(f"--engine mocker {SLOW}", *keys)["http"], state="API key needed")
    state, field = page.locator("#state"), page.get_by_label("API key")
    for given in (UNKNOWN_KEY, KEYS[Role.INFER]):
        expect(state).to_have_text("API key needed")
        field.fill(given)
        field.press("Enter")
    expect(state).to_have_text("ready")
    expect(field).to_be_hidden()
    ask(page, "for ever")
    expect(page.locator(".outcome")).to_contain_text("ended: stop")
    page.reload()
    expect(state).to_have_text("ready")
    assert page.context.cookies() == []
    assert KEYS[Role.INFER] not in page.content() + page.url
