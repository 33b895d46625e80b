"""Every case of the page on reliability has its test, or says why it has none."""

from __future__ import annotations

import re

from tests.repository import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text()
ROW = re.compile(r"^\| ([A-E]\d\d) \| (.+?) \| (.+?) \| (?:`(.+)::(test_\w+)`)? ?\|$", re.MULTILINE)
CLASS = re.compile(r"^\| ([A-E]), .+? \| (\d+) \| (\d+) \|", re.MULTILINE)


def test_each_case_names_a_test_that_is_there() -> None:
    rows = ROW.findall(PAGE)
    assert (
        len(rows)
        == len({number for number, *_ in rows})
        == len(re.findall(r"^\| [A-E]\d\d \|", PAGE, re.MULTILINE))
    )
    for number, _, _, file, test in rows:
        if file:
            assert re.search(rf"def {test}\b", (ROOT / "tests" / file).read_text()), number


def test_the_cases_of_each_class_are_counted() -> None:
    counted = {name: (int(cases), int(without)) for name, cases, without in CLASS.findall(PAGE)}
    all_files = {name: [row[3] for row in ROW.findall(PAGE) if row[0][0] == name] for name in "ABCDE"}
    assert counted == {name: (len(files), files.count("")) for name, files in all_files.items()}
