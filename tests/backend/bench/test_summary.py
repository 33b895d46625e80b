from __future__ import annotations

import json
import math
import xml.etree.ElementTree
from statistics import quantiles

import pytest
from hypothesis import given, strategies as st

from enginewire.backend.bench.plot import svg
from enginewire.backend.bench.report import as_json, table
from enginewire.backend.bench.summary import Summary, distribution, summarize
from enginewire.backend.bench.timeline import Delivery, Timeline, Used


def answered(begin: float, *pieces: tuple[float, int]) -> Timeline:
    """A request whose (time, tokens) arrived."""
    timeline = Timeline(begin, num_input_tokens=3)
    for now, num_tokens in pieces:
        timeline.add(now, Delivery(num_tokens))
    timeline.finish()
    return timeline


def failed(why: str) -> Timeline:
    timeline = Timeline(0.0, failure=why)
    timeline.finish()
    return timeline


def summary() -> Summary:
    """One request in steps of 10 ms, one in steps of 100 ms, and three failures."""
    fast = answered(1.0, (1.02, 1), (1.03, 1), (1.04, 1))
    slow = answered(1.0, (1.5, 2), (1.6, 2))
    return summarize(
        [fast, slow, failed("UNAVAILABLE"), failed("X"), failed("X")], 2.0, 4, {"ttft": 100, "tpot": 50}
    )


def test_latencies_of_one_request() -> None:
    timeline = answered(10.0, (10.5, 1), (10.5, 0), (10.75, 2), (11.5, 2))
    assert timeline.num_output_tokens == 5
    assert timeline.ttft == 0.5
    assert timeline.itls == [0.25, 0.75]
    assert timeline.tpot == 0.25
    assert timeline.e2el == 1.5


def test_a_single_token_has_no_time_per_token_and_harms_no_goodput() -> None:
    timeline = answered(0.0, (0.01, 1))
    assert timeline.tpot is None
    assert summarize([timeline], 1.0, limits={"tpot": 0.001}).good == 1


def test_tokens_that_nobody_counted_are_counted_by_the_usage() -> None:
    timeline = Timeline(0.0)
    for now in (1.0, 2.0, 3.0):
        timeline.add(now, Delivery(None))
    timeline.add(4.0, Used(7, 11))
    timeline.finish()
    assert (timeline.num_input_tokens, timeline.num_output_tokens) == (7, 11)
    assert (timeline.tpot, timeline.e2el) == (0.2, 3.0)


def test_an_answer_without_a_token_is_a_failure() -> None:
    assert summarize([answered(0.0)], 1.0).failures == {"an answer without a token": 1}


@given(st.lists(st.floats(0, 1000), min_size=2), st.sampled_from([50, 90, 99]))
def test_percentiles_are_those_of_the_standard_library(seconds: list[float], percent: int) -> None:
    expected = quantiles((each * 1000 for each in seconds), n=100, method="inclusive")[percent - 1]
    assert distribution(seconds).percentile(percent) == pytest.approx(expected)


def test_a_summary_counts_what_was_answered_well_and_not_at_all() -> None:
    figures = summary()
    assert (figures.completed, figures.failed, figures.good) == (2, 3, 1)
    assert (figures.num_input_tokens, figures.num_output_tokens) == (6, 7)
    assert figures.per_second(figures.num_output_tokens) == 3.5
    assert figures.latencies["tpot"].mean == pytest.approx((10 + 100 / 3) / 2)
    assert figures.latencies["itl"].samples == pytest.approx([10, 10, 100])
    assert figures.latencies["e2el"].samples == pytest.approx([40, 600])


def test_without_limits_nothing_is_good_or_bad() -> None:
    assert summarize([answered(0.0, (1.0, 1))], 1.0).good is None


def test_the_table_names_every_latency_and_the_most_frequent_failure_first() -> None:
    lines = table(summary()).splitlines()
    heads = next(line for line in lines if line.startswith("milliseconds"))
    assert heads.split() == ["milliseconds", "mean", "p50", "p90", "p99", "max"]
    rows = {line.split("(")[1].split(")")[0]: line.split()[-5:] for line in lines if "(" in line}
    assert list(rows) == ["TTFT", "TPOT", "ITL", "E2EL"]
    assert rows["ITL"] == ["40.00", "10.00", "82.00", "98.20", "100.00"]
    assert lines[-2:] == ["failed 2 x X", "failed 1 x UNAVAILABLE"]
    assert any(line.split() == ["goodput,", "requests/s", "0.50"] for line in lines)


def test_json_has_the_names_that_people_know() -> None:
    figures = json.loads(as_json(summary()))
    assert figures["request_goodput"] == 0.5
    assert figures["p99_itl_ms"] == pytest.approx(98.2)
    assert figures["errors"] == {"X": 2, "UNAVAILABLE": 1}


def test_a_run_without_answers_can_be_shown() -> None:
    nothing = summarize([failed("X")], 0.0)
    assert json.loads(as_json(nothing))["mean_ttft_ms"] is None
    assert "nan" in table(nothing)
    assert math.isnan(nothing.latencies["itl"].percentile(50))
    xml.etree.ElementTree.fromstring(svg(nothing))


def test_the_plot_has_a_curve_per_latency_that_never_falls() -> None:
    picture = xml.etree.ElementTree.fromstring(svg(summary()))
    curves = picture.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(curves) == 4
    for curve in curves:
        points = [tuple(map(float, point.split(","))) for point in curve.attrib["points"].split()]
        assert points == sorted(points, key=lambda point: (point[0], -point[1]))
        assert max(x for x, _ in points) == 300
