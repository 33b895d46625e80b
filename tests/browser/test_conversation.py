"""A prompt, its answer, and what can be done with both."""

from __future__ import annotations

import json

import httpx2
from playwright.sync_api import expect

from tests.backend.our_processes import until
from tests.browser.conftest import SLOW, OpenPage, Serve, ask

LONG = "for ever and ever " * 40
REMEMBER_WITHHELD = """() => {
  window.withheld = [];
  new MutationObserver(() => {
    const held = document.querySelector("#turns .withheld");
    if (held && held.textContent && held.textContent !== withheld.at(-1)) withheld.push(held.textContent);
  }).observe(document.querySelector("#turns"), { subtree: true, childList: true, characterData: true });
}"""


def test_a_prompt_becomes_tokens_and_text_as_they_come(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve("--mocker-ttft-ms 30 --mocker-itl-ms 60"))
    ask(page, "abc déf 日")
    tokens = page.locator("#tokens .token")
    expect(tokens.nth(2)).to_be_visible()
    assert tokens.count() < 13, "the answer came in one piece"
    expect(page.locator(".outcome")).to_contain_text("ended: stop · 13 tokens")
    expect(tokens).to_have_count(13)
    # The mocker has a token per byte: parts of a character are shown as bytes, the text is whole.
    expect(page.locator(".text")).to_have_text("abc déf 日")
    expect(tokens.nth(5)).to_have_text("‹c3›")


def test_text_that_may_become_a_stop_string_is_grey_until_it_is_decided(
    serve: Serve, open_page: OpenPage
) -> None:
    page = open_page(serve("--mocker-itl-ms 60"))
    page.evaluate(REMEMBER_WITHHELD)
    ask(page, "say hello to me", stop="hello you\nme")
    expect(page.locator(".outcome")).to_contain_text('ended: stop at "me"')
    expect(page.locator(".text")).to_have_text("say hello to ")
    seen = page.evaluate("withheld")
    # Tokens that arrive together are shown together, so perhaps not all of these were seen.
    assert set(seen) <= {"h", "he", "hel", "hell", "hello", "hello ", "m"}
    assert len(seen) >= 3


def test_stop_leaves_the_request_and_the_engine_is_free(serve: Serve, open_page: OpenPage) -> None:
    address = serve(SLOW)
    page = open_page(address)
    ask(page, LONG, max_tokens=4000)
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.locator(".token").first).to_be_visible()
    page.click("#halt")
    expect(page.locator("#rows tr")).to_have_count(0)
    expect(page.locator(".outcome")).to_contain_text("stopped")
    expect(page.locator("#go")).to_be_visible()
    until(lambda: not httpx2.get(f"{address}/enginewire/status").json()["engines"][0]["running"])
    ask(page, "another")
    expect(page.locator(".answer").nth(1).locator(".text")).to_have_text("another")


def test_keys_are_enough_to_send_and_to_stop(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(SLOW))
    page.set_checked("#chat", False)
    page.fill("#max-tokens", "4000")
    page.fill("#prompt", LONG)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#halt")).to_be_visible()
    page.focus("#halt")
    page.keyboard.press("Enter")
    expect(page.locator(".outcome")).to_contain_text("stopped")
    expect(page.locator("#go")).to_be_focused()
    page.fill("#prompt", LONG)
    page.focus("#go")
    page.keyboard.press("Enter")
    expect(page.locator("#halt")).to_be_focused()


def test_a_chat_tells_the_model_what_was_said_before(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    ask(page, "one", chat=True)
    # What the mocker says is what its template made of the messages.
    said = "user: one\nassistant: "
    expect(page.locator(".answer .outcome")).to_contain_text("ended: stop")
    with page.expect_request("**/enginewire/generate") as sent:
        ask(page, "二", chat=True)
    assert json.loads(sent.value.post_data or "")["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "二"},
    ]
    expect(page.locator(".answer").nth(1).locator(".outcome")).to_contain_text("ended: stop")
    expect(page.locator(".answer").nth(1).locator(".text")).to_contain_text("user: 二")
    expect(page.locator(".asked")).to_have_text(["one", "二"])


def test_what_got_no_answer_is_no_part_of_the_chat_and_can_be_mended(
    serve: Serve, open_page: OpenPage
) -> None:
    page = open_page(serve())
    page.fill("#top-p", "0")
    ask(page, "refused", chat=True)
    expect(page.locator(".outcome.failed")).to_contain_text("top_p")
    expect(page.locator("#prompt")).to_have_value("refused")
    page.fill("#top-p", "1")
    with page.expect_request("**/enginewire/generate") as sent:
        page.click("#go")
    assert [each["content"] for each in json.loads(sent.value.post_data or "")["messages"]] == ["refused"]
    expect(page.locator(".answer").nth(1).locator(".outcome")).to_contain_text("ended: stop")


def test_the_last_answer_can_be_had_again_and_only_that(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    for prompt in ("first", "second"):
        ask(page, prompt, chat=True)
        expect(page.locator(".answer").last.locator(".outcome")).to_contain_text("ended")
    again = page.get_by_role("button", name="Regenerate")
    expect(again).to_have_count(1)
    page.fill("#max-tokens", "3")
    with page.expect_request("**/enginewire/generate") as sent:
        again.click()
    messages = json.loads(sent.value.post_data or "")["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user"]
    expect(page.locator(".answer")).to_have_count(2)
    expect(page.locator(".answer").last.locator(".outcome")).to_contain_text("ended: length · 3 tokens")
    expect(page.locator(".asked")).to_have_text(["first", "second"])


def test_an_answer_is_copied_as_it_was_written(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), permissions=["clipboard-read", "clipboard-write"])
    said = "# a *title*\n\n```\ncode\n```"
    ask(page, said)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == said


def test_a_new_conversation_begins_with_nothing(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    ask(page, "one", chat=True)
    expect(page.locator(".outcome")).to_contain_text("ended")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn, .token")).to_have_count(0)
    with page.expect_request("**/enginewire/generate") as sent:
        ask(page, "two", chat=True)
    assert len(json.loads(sent.value.post_data or "")["messages"]) == 1


def test_the_end_of_a_conversation_stays_in_view(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve("--mocker-itl-ms 2"), viewport={"width": 1280, "height": 1200})
    page.fill("#choices", "2")
    for number in range(3):
        ask(page, "word " * 60)
        expect(page.locator(".answer")).to_have_count(number + 1)
        expect(page.locator(".answer").last.locator(".outcome")).to_contain_text("ended")
        expect(page.locator(".answer").last.get_by_role("button", name="Regenerate")).to_be_in_viewport(
            ratio=1
        )
    # Who reads what was said before is left there.
    page.eval_on_selector("#turns", "turns => { turns.scrollTop = 0 }")
    page.get_by_role("button", name="Choice 2").first.click()
    assert page.eval_on_selector("#turns", "turns => turns.scrollTop") == 0


def test_tokens_of_an_earlier_answer_can_be_looked_at(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    for prompt in ("abc", "defg"):
        ask(page, prompt)
        expect(page.locator(".answer").last.locator(".outcome")).to_contain_text("ended")
    expect(page.locator("#tokens .token")).to_have_count(5)
    page.locator(".answer").first.get_by_role("button", name="Tokens").click()
    expect(page.locator("#tokens .token").first).to_have_text("a")
    expect(page.locator("#tokens .token")).to_have_count(4)


def test_what_a_model_says_is_never_markup(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    said = "<img src=x onerror=alert(1)><b>bold</b>[a](javascript:alert(1))"
    for chat in (False, True):
        ask(page, said, chat=chat)
        expect(page.locator(".answer").last.locator(".outcome")).to_contain_text("ended")
        expect(page.locator(".answer").last.locator(".text")).to_contain_text(said)
    assert page.locator(".turn :is(img, b, a, script), #tokens :is(img, b, a)").count() == 0


def test_markdown_of_a_chat_is_shown_as_it_comes(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve("--mocker-itl-ms 15"))
    ask(page, "\n\n# Title\n\nsome **bold** `code`\n\n- one\n- 二\n\n```py\nx = 1\n", chat=True)
    text = page.locator(".answer .text")
    expect(text.locator("h3")).to_have_text("Title")
    expect(text.locator("strong")).to_have_text("bold")
    expect(text.locator("li")).to_have_text(["one", "二"])
    expect(page.locator(".outcome")).to_contain_text("ended")
    assert text.locator("pre").get_attribute("data-language") == "py"
    expect(text.locator("pre code")).to_contain_text("x = 1")


def test_a_refusal_is_shown_in_the_place_of_an_answer(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    with page.expect_response("**/enginewire/generate") as refused:
        ask(page, "")
    assert refused.value.status == 400
    expect(page.locator(".outcome.failed")).to_contain_text("must not be empty")


def test_a_lost_connection_is_said(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(SLOW))
    page.context.set_offline(True)
    ask(page, "abc")
    expect(page.locator(".outcome.failed")).to_contain_text("the connection was lost")
    page.context.set_offline(False)
    ask(page, "abc")
    expect(page.locator(".answer").last.locator(".text")).to_have_text("abc")
