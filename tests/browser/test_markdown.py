"""The markdown of answers, as elements."""

from __future__ import annotations

import pytest

from tests.browser.conftest import OpenPage, Serve

RENDER = """async (text) => {
  const { blocksOf, elementOf } = await import("/page/conversation/markdown.js");
  const root = document.createElement("div");
  root.append(...blocksOf(text).map(elementOf));
  return root.innerHTML.replaceAll(' tabindex="0"', "");
}"""
# An answer that comes character by character, and is shown after each.
GROW = """async (text) => {
  const { Answer } = await import("/page/conversation/answer.js");
  const pane = document.createElement("div");
  const answer = new Answer({ isMarkdown: true, pane, onSelect: () => {}, onRegenerate: () => {} });
  for (const character of text) {
    answer.selected.add({ index: 0, text: character, withheld: "w", tokens: [] });
    answer.selected.render();
  }
  answer.selected.stop();
  answer.selected.held.remove();
  return answer.selected.root.innerHTML.replaceAll(' tabindex="0"', "");
}"""
TIME = """async (text) => {
  const { blocksOf, elementOf } = await import("/page/conversation/markdown.js");
  const began = performance.now();
  blocksOf(text).map(elementOf);
  return performance.now() - began;
}"""
CASES = {
    "": "",
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# One\n### Two ##\n#none": "<h3>One</h3><h5>Two</h5><p>#none</p>",
    "a **b** c *d* e __f__ _g_": "<p>a <strong>b</strong> c <em>d</em> e <strong>f</strong> <em>g</em></p>",
    "**日本**語と*強調*": "<p><strong>日本</strong>語と<em>強調</em></p>",
    "***both*** **a *b* c**": "<p><strong><em>both</em></strong> <strong>a <em>b</em> c</strong></p>",
    "snake_case_name 2 * 3 * 4 **open": "<p>snake_case_name 2 * 3 * 4 **open</p>",
    "`a *b*` ``c ` d`` `open": "<p><code>a *b*</code> <code>c ` d</code> `open</p>",
    r"\*not\* \`it\` C:\dir": r"<p>*not* `it` C:\dir</p>",
    "- a\n- b\n  more\n* c": "<ul><li>a</li><li>b\nmore</li><li>c</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "1. a\n   - b\n   - c\n2. d": "<ol><li>a<ul><li>b</li><li>c</li></ul></li><li>d</li></ol>",
    "- a\n\n- b\n\nafter": "<ul><li>a</li><li>b</li></ul><p>after</p>",
    "- a\n1. b": "<div><ul><li>a</li></ul><ol><li>b</li></ol></div>",
    "text\n```py\nif a < b:\n\n    # no *title*\n```\nafter": (
        '<p>text</p><pre data-language="py"><code>if a &lt; b:\n\n    # no *title*</code></pre><p>after</p>'
    ),
    "~~~\n```\n~~~": "<pre><code>```</code></pre>",
    "```\nopen": "<pre><code>open</code></pre>",
    "<b onclick=x>&amp;</b>": "<p>&lt;b onclick=x&gt;&amp;amp;&lt;/b&gt;</p>",
    "[a](javascript:x) ![i](http://x/y.png)": "<p>[a](javascript:x) ![i](http://x/y.png)</p>",
    "a\r\nb": "<p>a\nb</p>",
}
HARD = ["*" * 50_000, "**a " * 20_000, "`" * 30_000 + "a", "`a``b" * 10_000, "- " * 20_000, "_a " * 20_000]


def test_each_kind_of_block_and_span_becomes_its_elements(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    assert {text: page.evaluate(RENDER, text) for text in CASES} == CASES


def test_an_answer_that_grows_becomes_the_same(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    assert {text: page.evaluate(GROW, text) for text in CASES} == CASES


def test_no_text_takes_long(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    nested = "\n".join(" " * (2 * i) + "- a" for i in range(500))
    # A hundred kilobytes at most: what grows with the square of that takes minutes.
    assert max(page.evaluate(TIME, text) for text in [*HARD, nested, "*a **b " * 5_000]) < 5_000


@pytest.mark.parametrize("text", ["😀 *a*", "a\u2028b"])
def test_odd_characters_are_shown_as_they_are(serve: Serve, open_page: OpenPage, text: str) -> None:
    page = open_page(serve())
    assert page.evaluate(RENDER, text).replace("<em>a</em>", "*a*") == f"<p>{text}</p>"
