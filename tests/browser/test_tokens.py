"""What is known about a token: by mouse, by keyboard and by touch."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, Serve, ask


def asked(page: Page, prompt: str = "abc") -> None:
    ask(page, prompt)
    expect(page.locator(".outcome")).to_contain_text("ended")


def test_hovering_shows_what_is_known_about_a_token(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    asked(page)
    page.hover("#tokens .token:nth-child(2)")
    tip = page.locator("#tip")
    expect(tip).to_be_visible()
    expect(tip.locator("dd")).to_have_text(["b", "98", "62", "-0.693 (50.0 %)"])
    expect(tip.locator("li code")).to_have_text(["b", "c", "d", "e"])
    page.hover("h1")
    expect(tip).to_be_hidden()


def test_keys_lead_from_token_to_token(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    asked(page, "abcdefghijklmnopqrstuvwxyz " * 6)
    page.focus("#tokens")
    page.keyboard.press("Tab")
    first = page.locator("#tip dd").first
    expect(first).to_have_text("a")
    active = page.locator(".token:focus")
    expect(active).to_have_attribute("aria-describedby", "tip")
    expect(active).to_have_attribute("role", "option")
    for key, token in [
        ("ArrowRight", "b"),
        ("ArrowRight", "c"),
        ("ArrowLeft", "b"),
        ("End", "<|eos|>"),
        ("Home", "a"),
    ]:
        page.keyboard.press(key)
        expect(first).to_have_text(token)
    top = active.bounding_box()
    page.keyboard.press("ArrowDown")
    below = active.bounding_box()
    assert below is not None
    assert top is not None
    assert below["y"] > top["y"] + 10
    assert abs(below["x"] - top["x"]) < 12
    page.keyboard.press("ArrowUp")
    expect(first).to_have_text("a")
    page.keyboard.press("ArrowUp")
    expect(first).to_have_text("a")
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    expect(first).to_have_text("b")
    # One stop for all tokens: the next Tab leaves them.
    page.keyboard.press("Tab")
    expect(page.locator("#tip")).to_be_hidden()
    expect(page.locator(".token:focus")).to_have_count(0)


def test_a_tap_shows_and_the_next_one_elsewhere_hides(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), has_touch=True, viewport={"width": 360, "height": 740})
    asked(page)
    page.locator("#tokens .token").nth(1).tap()
    expect(page.locator("#tip dd").first).to_have_text("b")
    expect(page.locator("#tip")).to_be_in_viewport(ratio=1)
    page.locator("#tokens .token").nth(2).tap()
    expect(page.locator("#tip dd").first).to_have_text("c")
    page.locator("h2").first.tap()
    expect(page.locator("#tip")).to_be_hidden()


def test_a_tap_shows_again_what_escape_has_hidden_and_tab_comes_back_to_it(
    serve: Serve, open_page: OpenPage
) -> None:
    page = open_page(serve(), has_touch=True)
    asked(page)
    tip = page.locator("#tip")
    page.locator("#tokens .token").nth(2).tap()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.locator("#tokens .token").nth(2).tap()
    expect(tip.locator("dd").first).to_have_text("c")
    page.keyboard.press("Tab")
    expect(tip).to_be_hidden()
    page.keyboard.press("Shift+Tab")
    expect(tip.locator("dd").first).to_have_text("c")


def test_facts_stay_at_their_token_while_others_come(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve("--mocker-itl-ms 20"))
    ask(page, "x" * 400, max_tokens=400)
    page.locator("#tokens .token").nth(3).click()
    expect(page.locator("#tip")).to_be_visible()
    expect(page.locator("#tokens .token").nth(60)).to_be_attached()
    expect(page.locator("#tip")).to_be_visible()
    expect(page.locator(".token.shown")).to_have_count(1)
