from __future__ import annotations

import re

import pytest

from enginewire.conformance.session.views.exporter import GENERATED, RUNNING, WAITING, parse
from enginewire.conformance.wire.violation import NotApplicable

TEXT = """\
# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 4.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0"} 1e3
# TYPE seconds histogram
seconds_bucket{le="+Inf"} 7
seconds_sum 1.5
# TYPE process_open_fds gauge
process_open_fds 9
not a sample at all
"""


def test_samples_are_added_up_over_their_labels() -> None:
    assert (parse(TEXT).sum_of(RUNNING), parse(TEXT).sum_of(GENERATED)) == (7, 1000)


def test_what_nobody_exports_does_not_count_as_zero() -> None:
    with pytest.raises(NotApplicable):
        parse(TEXT).sum_of(WAITING)


def test_parts_of_a_histogram_may_only_grow() -> None:
    names = {name.partition("{")[0] for name in parse(TEXT).growing()}
    assert names == {"vllm:generation_tokens_total", "seconds_bucket", "seconds_sum"}


def test_what_tells_by_its_labels_is_no_gauge_that_returns() -> None:
    name = "vllm:lora_requests_info"
    told = f'# TYPE {name} gauge\n{name}{{running_lora_adapters="a_b"}} 1764273600\n'
    assert parse(TEXT + told).gauges() == parse(TEXT).gauges()


def test_gauges_of_the_process_are_nobodys_load() -> None:
    assert {name.partition("{")[0] for name in parse(TEXT).gauges()} == {"vllm:num_requests_running"}


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("vllm:num_requests_running", RUNNING),
        ("sglang:num_running_reqs", RUNNING),
        ("vllm:num_requests_waiting", WAITING),
        ("sglang:num_queue_reqs", WAITING),
        ("engine_generation_tokens_total", GENERATED),
    ],
)
def test_names_that_engines_use_are_known(name: str, pattern: str) -> None:
    assert re.fullmatch(pattern, name)
