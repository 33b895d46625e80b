"""What the form asks for beside the prompt, and what the answer is then."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, Serve, ServeFaces, ask

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Enginewire"]}, "count": {"enum": [1, 2, 3]}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


def sent_by(page: Page, prompt: str, **asked: object) -> dict[str, object]:
    """Send it; the body of the request, once the answer has ended."""
    before = page.locator(".answer").count()
    with page.expect_request("**/enginewire/generate") as sent:
        ask(page, prompt, **asked)
    expect(page.locator(".answer").nth(before).locator(".outcome")).to_contain_text("ended")
    return json.loads(sent.value.post_data or "")


def test_what_is_left_empty_is_not_asked_for(serve: Serve, open_page: OpenPage) -> None:
    body = sent_by(open_page(serve()), "abc")
    assert body == {
        "stream": True, "prompt": "abc", "max_tokens": 200, "temperature": 0, "n": 1, "logprobs": 4
    }  # fmt: skip


def test_every_number_reaches_the_engine(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    for field, value in {"temperature": "0.7", "top-p": "0.25", "seed": "-12", "choices": "2"}.items():
        page.fill(f"#{field}", value)
    body = sent_by(page, "abcdef", max_tokens=4)
    wanted = {"temperature": 0.7, "top_p": 0.25, "seed": -12, "n": 2, "max_tokens": 4}
    assert {name: body[name] for name in wanted} == wanted
    expect(page.locator(".outcome")).to_contain_text("ended: length · 8 tokens")


@pytest.mark.parametrize(
    ("typed", "stop", "text"),
    [
        (" wire", [" wire"], "the"),
        ("wire ", ["wire "], "the "),
        (" ", [" "], "the"),
        ("nothing\n\nbe,tw", ["nothing", "be,tw"], "the wire "),
        (r"\n", ["\n"], "the wire be,tween "),
        (r"二\\n", [r"二\n"], "the wire be,tween \n"),
    ],
)
def test_stop_strings_are_taken_as_they_are_typed(
    serve: Serve, open_page: OpenPage, typed: str, stop: list[str], text: str
) -> None:
    page = open_page(serve())
    body = sent_by(page, "the wire be,tween \n二\\nthree", stop=typed)
    assert body["stop"] == stop
    expect(page.locator(".outcome")).to_contain_text(
        f"ended: stop at {json.dumps(stop[-1], ensure_ascii=False)}"
    )
    assert page.locator(".answer .text").evaluate("text => text.textContent") == text


def test_every_choice_can_be_looked_at_and_said_to_the_model(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve("--mocker-itl-ms 10"))
    page.fill("#choices", "3")
    sent_by(page, "abc", chat=True)
    tabs = page.get_by_role("group", name="Choices").get_by_role("button")
    expect(tabs).to_have_text(["Choice 1", "Choice 2", "Choice 3"])
    expect(page.locator(".answer .text")).to_have_count(1)
    tabs.nth(2).click()
    expect(tabs.nth(2)).to_have_attribute("aria-pressed", "true")
    expect(tabs.nth(0)).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".answer .text")).to_contain_text("user: abc")
    assert page.locator("#tokens .token").count() > 5
    page.fill("#choices", "1")
    body = sent_by(page, "more", chat=True)
    assert [each["content"] for each in body["messages"]] == ["abc", "user: abc\nassistant: ", "more"]


def test_numbers_that_no_engine_takes_are_not_sent(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    sent: list[str] = []
    for field, wrong, right in [("max-tokens", "0", "5"), ("top-p", "1.5", ""), ("seed", "0.5", "")]:
        page.fill(f"#{field}", wrong)
        page.click("#go")
        assert page.evaluate("document.activeElement.id") == field
        page.fill(f"#{field}", right)
    assert sent == []
    page.click("#go")
    expect(page.locator(".outcome")).to_contain_text("ended")


def test_a_schema_that_is_none_is_said_and_not_sent(serve_faces: ServeFaces, open_page: OpenPage) -> None:
    page = open_page(serve_faces("builtin:demo")["http"])
    page.locator("summary").click()
    for wrong, why in [('{"type": ', "not JSON"), ("[1]", "a schema is a JSON object")]:
        page.fill("#schema", wrong)
        page.click("#go")
        assert page.evaluate("document.activeElement.id") == "schema"
        assert why in page.evaluate("document.activeElement.validationMessage")
    expect(page.locator(".turn")).to_have_count(0)
    page.fill("#schema", json.dumps(SCHEMA))
    body = sent_by(page, "What is Enginewire?", chat=True)
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert json.loads(page.locator(".answer .text").inner_text())["name"] == "Enginewire"


def test_what_an_engine_cannot_do_cannot_be_asked_for(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    page.locator("summary").click()
    expect(page.locator("#schema")).to_be_disabled()
    assert page.locator("#schema").get_attribute("title") == "this engine cannot do that"
    expect(page.locator("#seed")).to_be_enabled()
