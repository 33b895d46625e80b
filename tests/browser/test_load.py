"""The load over time, and that nobody asks for it whom it does not show."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, Request, expect

from tests.backend.our_processes import until
from tests.browser.conftest import SLOW, OpenPage, Serve, ask

CHARTS = ("KV use", "Queue", "Time to first token", "Time between tokens", "Output")
# What a browser does when its tab goes to the back or comes to the front again.
TURN = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  const state = hidden ? "hidden" : "visible";
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_load_and_latencies_are_charts_with_axes_and_figures(serve: Serve, open_page: OpenPage) -> None:
    # However busy this machine is, the first answer outlasts the looking: as many tokens as its prompt has,
    # five a second, in a context and a cache that have room for all of them.
    address = serve("--mocker-ttft-ms 30 --mocker-itl-ms 200 --max-num-seqs 1 --num-kv-blocks 400")
    page = open_page(address)
    charts = page.locator("figure.chart")
    expect(charts.locator(".title-of-chart")).to_have_text(CHARTS)
    ask(page, "x" * 2000, max_tokens=2000)
    expect(page.locator("#rows .phase-name")).to_have_text(["decode"])
    kv, queue, ttft, itl, output = (charts.nth(number) for number in range(len(CHARTS)))
    # Now, because there is one value of it, which leaves the chart after a minute.
    shows(ttft, re.compile(r"\d m?s"))
    ask(open_page(address), "abc")
    shows(queue, ["1 waiting", "1 running"])
    shows(kv, re.compile(r"[1-9]\d? %"))
    shows(itl, re.compile(r"\d m?s"))
    shows(output, re.compile("[1-9].* tokens/s"))


def shows(chart: Locator, figures: re.Pattern[str] | list[str]) -> None:
    """Fails unless the chart has these figures, a line and axes that can be read."""
    expect(chart.locator("b")).to_have_text(figures)
    expect(chart.locator("text.x")).to_have_text(["60 s ago", "now"])
    least, middle, most = chart.locator("text.y").all_text_contents()
    assert re.match(r"0( %)?$", least)
    assert middle != most
    expect(chart.locator("path.line").first).to_have_attribute("d", re.compile(r"^M[\d. ]+.*[Lh]"))
    told = re.compile("in the last minute: .*up to")
    expect(chart.get_by_role("img")).to_have_attribute("aria-label", told)


def test_events_that_come_late_do_not_make_the_engine_fast(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    shown = page.evaluate(
        """async () => {
          const { LoadCharts } = await import("/page/load/charts.js");
          const charts = new LoadCharts();
          const none = { sum: 0, count: 0 };
          for (const [at, tokens] of [[50, 0], [50.2, 200], [50.4, 400], [7, 0]]) {
            charts.show({ at, engines: [], totals: { ttft: none, itl: none, generated_tokens: tokens } });
          }
          return [charts.speed.root.querySelector("b").textContent, charts.speed.points.length];
        }"""
    )
    assert shown == ["640 tokens/s", 0]


def test_a_chart_keeps_a_minute_and_shows_when_nobody_looked(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    kept, lines = page.evaluate(
        """async () => {
          const { Chart } = await import("/page/load/chart.js");
          const chart = new Chart(document.querySelector("#charts"), "x", { least: 1, label: String });
          await new Promise((done) => new ResizeObserver(done).observe(chart.svg));
          for (const at of [10, 10.2, 40, 40.2, 72, 72.2]) chart.add(at, [at], [""]);
          const drawn = chart.lines[0].getAttribute("d");
          return [chart.points.map((point) => point.at), drawn.split("M").length - 1];
        }"""
    )
    assert kept == [40, 40.2, 72, 72.2]
    assert lines == 2


def test_no_line_leaves_its_chart(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve("--mocker-itl-ms 2"))
    for _ in range(3):
        ask(page, "x" * 300, max_tokens=400)
        expect(page.locator(".answer").last.locator(".outcome")).to_contain_text("ended")
    outside = page.evaluate(
        """() => [...document.querySelectorAll(".chart svg")].filter((svg) => {
          const box = svg.getBoundingClientRect();
          return [...svg.querySelectorAll(".line, text")].some((each) => {
            const line = each.getBoundingClientRect();
            return line.left < box.left - 1 || line.right > box.right + 1 || line.top < box.top - 3
              || line.bottom > box.bottom + 1;
          });
        }).length"""
    )
    assert outside == 0


def watching(page: Page) -> tuple[list[Request], list[Request]]:
    """The requests for the state from now on that have begun, and those of them that have ended."""
    begun: list[Request] = []
    ended: list[Request] = []
    page.on("request", lambda request: begun.append(request))
    page.on("requestfailed", lambda request: ended.append(request))
    page.on("requestfinished", lambda request: ended.append(request))
    return begun, ended


def test_a_page_that_nobody_sees_asks_for_nothing(serve: Serve, open_page: OpenPage) -> None:
    address = serve(SLOW)
    page = open_page(address)
    begun, ended = watching(page)
    page.evaluate(TURN, True)
    until(lambda: page.evaluate("1") == 1 and len(ended) == 1, within=60)
    assert ended[0].url == f"{address}/enginewire/events"
    page.evaluate(
        "window.changes = 0; new MutationObserver(() => { changes += 1; })"
        ".observe(document.querySelector('#charts'), { subtree: true, attributes: true })"
    )
    # An answer takes longer than several events.
    ask(page, "x" * 60)
    expect(page.locator(".outcome")).to_contain_text("ended")
    assert [request.url for request in begun] == [f"{address}/enginewire/generate"]
    assert page.evaluate("changes") == 0
    page.evaluate(TURN, False)
    expect(page.locator("#ended tr")).to_have_count(1)
    assert [request.url for request in begun[1:]] == [f"{address}/enginewire/events"]


def test_a_page_that_was_opened_behind_another_begins_when_it_is_seen(
    serve: Serve, open_page: OpenPage
) -> None:
    address = serve()
    page = open_page(address)
    page.add_init_script(f"({TURN})(true)")
    begun, _ = watching(page)
    page.reload()
    expect(page.locator("#state")).to_have_text("connecting")
    page.evaluate("new Promise((done) => setTimeout(done, 500))")
    assert not [request.url for request in begun if "/enginewire/" in request.url]
    page.evaluate(TURN, False)
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#go")).to_be_enabled()
