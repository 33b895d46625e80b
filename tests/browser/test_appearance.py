"""How the page looks: on a phone, in the dark, and to whoever cannot see it as most do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import SLOW, OpenPage, Serve, ask

AXE = Path(os.environ.get("ENGINEWIRE_AXE", f"{sys.prefix}/lib/node_modules/axe-core/axe.min.js"))
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}
SAID = "\n\n# Title\n\n*Words* and `code`\n\n- one\n- two\n\n```py\nprint('" + "long " * 30 + "')\n```\n"
# Whatever sticks out of the window to its right.
OUTSIDE = """() => [...document.querySelectorAll("body *")].filter((each) => {
  const box = each.getBoundingClientRect();
  const scrolls = each.closest("pre") && each.tagName !== "PRE";
  return box.width && box.right > innerWidth + 0.5 && !scrolls && !each.closest("thead");
}).map((each) => each.outerHTML.slice(0, 80))"""


def filled(page: Page) -> None:
    """A page with everything on it: turns, a failure, choices, facts of a token, live and ended requests."""
    page.locator("summary").click()
    page.fill("#choices", "2")
    ask(page, SAID, chat=True)
    expect(page.locator(".answer .outcome")).to_contain_text("ended", timeout=120_000)
    ask(page, "", chat=False)
    expect(page.locator(".outcome.failed")).to_be_visible()
    ask(page, "y" * 3000, max_tokens=3000, stop="yyyz")
    expect(page.locator("#rows .phase-name")).to_have_text(["decode"])
    expect(page.locator(".withheld").last).not_to_be_empty()
    page.locator("#tokens .token").nth(2).click()
    expect(page.locator("#tip")).to_be_visible()


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(serve: Serve, open_page: OpenPage, scheme: str, viewport: dict[str, int]) -> None:
    page = open_page(serve(SLOW), color_scheme=scheme, viewport=viewport)
    assert faults(page) == []
    filled(page)
    assert faults(page) == []


def faults(page: Page) -> list[str]:
    """What axe-core finds in the page as it is."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert len(found["passes"]) > 20, "it looked at nothing"
    return [
        f"{violation['id']}: {node['html'][:90]} {node['failureSummary'][:300]}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("width", [360, 500, 700, 1000])
def test_nothing_has_to_be_scrolled_sideways(serve: Serve, open_page: OpenPage, width: int) -> None:
    page = open_page(serve(SLOW), viewport={"width": width, "height": 740})
    assert page.evaluate(OUTSIDE) == []
    filled(page)
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_light_follow_the_reader(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), color_scheme="light")
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(246, 245, 241)", "rgb(18, 20, 23)"]


def test_nothing_moves_for_those_who_do_not_want_it(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(SLOW), reduced_motion="reduce")
    ask(page, "x" * 100)
    going = page.locator(".going")
    expect(going).to_be_visible()
    assert going.evaluate("each => getComputedStyle(each, '::after').animationName") == "none"


# The contrast of text on a token that was most improbable, as WCAG counts it.
CONTRAST = """(place) => {
  const chip = document.querySelectorAll(".token")[place];
  chip.style.setProperty("--surprise", 1);
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const fill = (element, property) => {
    context.fillStyle = getComputedStyle(element)[property];
    context.fillRect(0, 0, 1, 1);
  };
  const light = () => [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)]
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  fill(document.querySelector(".card"), "backgroundColor");
  fill(chip, "backgroundColor");
  const ground = light();
  fill(chip, "color");
  const ink = light();
  return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
}"""


def test_the_least_probable_token_can_be_read(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    ask(page, "abc")
    expect(page.locator(".outcome")).to_contain_text("ended")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for place in (0, 1):
            assert 4.5 < page.evaluate(CONTRAST, place) < 21, scheme
