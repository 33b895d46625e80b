"""Every case of the page on reliability has its test, or says why it has none."""

from __future__ import annotations

import re

from tests.repository import ROOT

ROW = re.compile(r"^\| ([A-E]\d\d) \| (.+?) \| (.+?) \| (?:`(.+)::(test_\w+)`)? ?\|$", re.MULTILINE)


def test_each_case_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    rows = ROW.findall(page)
    assert (
        len(rows)
        == len({number for number, *_ in rows})
        == len(re.findall(r"^\| [A-E]\d\d \|", page, re.MULTILINE))
    )
    for number, _, _, file, test in rows:
        if file:
            assert re.search(rf"def {test}\b", (ROOT / "tests" / file).read_text()), number
