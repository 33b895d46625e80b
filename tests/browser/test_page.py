from __future__ import annotations

import httpx2
from playwright.sync_api import expect

from tests.backend.our_processes import until
from tests.browser.conftest import OpenPage, Serve, ask

LONG = "for ever and ever " * 40
REMEMBER_WITHHELD = """() => {
  window.withheld = [];
  new MutationObserver(() => {
    const text = document.querySelector("#text .withheld").textContent;
    if (text && text !== withheld.at(-1)) withheld.push(text);
  }).observe(document.querySelector("#text"), { subtree: true, childList: true, characterData: true });
}"""
SLOW = "--mocker-ttft-ms 30 --mocker-itl-ms 25"


def test_a_prompt_becomes_tokens_and_text_as_they_come(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(SLOW))
    ask(page, "abc déf 日")
    tokens = page.locator("#tokens .token")
    expect(tokens.nth(2)).to_be_visible()
    assert tokens.count() < 13, "the answer came in one piece"
    expect(page.locator("#outcome")).to_contain_text("ended: stop · 13 tokens")
    expect(tokens).to_have_count(13)
    # The mocker has a token per byte: parts of a character are shown as bytes, the text is whole.
    expect(page.locator("#text")).to_have_text("abc déf 日")
    expect(tokens.nth(5)).to_have_text("‹c3›")
    expect(page.locator("#ttft b")).to_contain_text("ms")
    assert page.locator("#itl path.line").get_attribute("d")


def test_hovering_shows_what_is_known_about_a_token(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    ask(page, "abc")
    page.hover("#tokens .token:nth-child(2)")
    tip = page.locator("#tip")
    expect(tip).to_be_visible()
    expect(tip.locator("dd")).to_have_text(["b", "98", "62", "-0.693 (50.0 %)"])
    expect(tip.locator("li code")).to_have_text(["b", "c", "d", "e"])


def test_text_that_may_become_a_stop_string_is_grey_until_it_is_decided(
    serve: Serve, open_page: OpenPage
) -> None:
    page = open_page(serve("--mocker-itl-ms 40"))
    page.evaluate(REMEMBER_WITHHELD)
    ask(page, "say hello to me", stop="hello you, me")
    expect(page.locator("#outcome")).to_contain_text('ended: stop at "me"')
    expect(page.locator("#text")).to_have_text("say hello to ")
    seen = page.evaluate("withheld")
    # Tokens that arrive together are shown together, so perhaps not all of these were seen.
    assert set(seen) <= {"h", "he", "hel", "hell", "hello", "hello ", "m"}
    assert len(seen) >= 3


def test_an_abort_ends_the_request_and_its_row_goes(serve: Serve, open_page: OpenPage) -> None:
    address = serve(SLOW)
    page = open_page(address)
    ask(page, LONG, max_tokens=4000)
    row = page.locator("#rows tr")
    expect(row).to_have_count(1)
    expect(row.locator(".phase")).to_have_text("decode")
    expect(row.locator("td").nth(2)).to_have_text(str(len(LONG)))
    expect(page.locator(".grid .used")).not_to_have_count(0)
    row.get_by_role("button").click()
    expect(row).to_have_count(0)
    expect(page.locator("#outcome")).to_contain_text("aborted over HTTP")
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator(".grid .used")).to_have_count(0)
    until(lambda: not httpx2.get(f"{address}/enginewire/status").json()["engines"][0]["running"])


def test_stop_leaves_the_request_and_the_engine_is_free(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(SLOW))
    ask(page, LONG, max_tokens=4000)
    expect(page.locator("#rows tr")).to_have_count(1)
    page.click("#halt")
    expect(page.locator("#rows tr")).to_have_count(0)
    expect(page.locator("#outcome")).to_contain_text("stopped")


def test_requests_of_other_callers_are_shown_and_can_be_aborted(serve: Serve, open_page: OpenPage) -> None:
    address = serve("--mocker-itl-ms 25 --max-num-seqs 1")
    page = open_page(address)
    body = {"prompt": "x" * 40, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with (
        httpx2.stream("POST", f"{address}/v1/completions", json=body) as first,
        httpx2.Client() as client,
    ):
        assert first.status_code == 200
        expect(page.locator("#rows tr")).to_have_count(1)
        ask(page, "second")
        expect(page.locator("#rows .phase")).to_have_text(["decode", "waiting"])
        expect(page.locator(".counts")).to_contain_text("1 waiting")
        page.locator("#rows tr").first.get_by_role("button").click()
        expect(page.locator("#rows .phase")).to_have_text(["decode"])
        assert b'"code":"cancelled"' in b"".join(first.iter_bytes())
        assert client.get(f"{address}/metrics").status_code == 200


def test_what_a_model_says_is_never_markup(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    said = "<img src=x onerror=alert(1)><b>bold</b>"
    ask(page, said)
    expect(page.locator("#text")).to_have_text(said)
    assert page.locator("#text img, #tokens img, #text b, #tokens b").count() == 0


def test_a_refusal_is_shown_in_the_place_of_an_answer(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    with page.expect_response("**/enginewire/generate") as refused:
        ask(page, "")
    assert refused.value.status == 400
    expect(page.locator("#outcome.failed")).to_contain_text("must not be empty")
