"""What is exported of vLLM's own counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from enginewire.server.engines.interface import MetricsContext
from enginewire.vllm_engine.answers.steps import Steps
from enginewire.vllm_engine.metrics import register
from tests.server.telemetry.metrics.scraping import Scrape, documented
from tests.vllm_engine.answers.test_steps import Drafts, Lookups, Made, Stats


def scrape_after(*stats: Stats) -> Scrape:
    """What is exported after steps with these statistics."""
    steps, registry = Steps(), CollectorRegistry()
    register(MetricsContext("m", registry), steps.counts)
    for each in stats:
        steps.take(Made([], each))
    return Scrape(generate_latest(registry).decode())


def test_every_name_and_kind_is_documented_and_nothing_else() -> None:
    assert scrape_after(Stats(spec_decoding_stats=Drafts(1, 2, 3))).names() == documented("Of vLLM")


def test_without_a_draft_model_nothing_is_said_of_drafts() -> None:
    assert not [name for name in scrape_after(Stats()).names() if "spec_decode" in name]


def test_counts_of_all_steps_add_up_under_their_own_names() -> None:
    step = Stats(prefix_cache_stats=Lookups(10, 20), spec_decoding_stats=Drafts(30, 40, 50))
    found = scrape_after(step, step)
    assert [found(f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits")] == [20, 40]
    names = ("drafts", "draft_tokens", "accepted_tokens")
    assert [found(f"vllm:spec_decode_num_{name}_total") for name in names] == [60, 80, 100]
