"""A server that exports metrics, over HTTP; and one that does not."""

from __future__ import annotations

import sys
from urllib.error import URLError

import pytest
from prometheus_client import Counter

from enginewire import v1 as pb
from enginewire.server import __main__ as command
from enginewire.server.admission.observer import Observer
from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.interface import MetricsBindings, MetricsContext
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.load_engine import make_engine
from enginewire.server.server import EXIT_ADDRESS, EngineServer
from tests.server.serving import ask
from tests.server.telemetry.metrics.scraping import scrape


class StepCounter(MockerEngine):
    """Adds a counter of its own."""

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        mine = Counter("my_starts", "Starts.", ["model_name"], registry=context.registry)
        mine.labels(context.model).inc()
        return MetricsBindings()


class Broken(MockerEngine):
    """Its load cannot be read once it has begun to serve."""

    def load(self) -> pb.Load:
        if self.is_broken:
            raise RuntimeError("no load")
        return super().load()

    is_broken = False


async def config_of(serving) -> pb.EngineConfig:
    return (await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())).config


async def test_a_server_without_the_option_exports_and_counts_nothing(engine_server):
    serving = await engine_server(disable_log_stats=True)
    assert serving.server.metrics is None
    assert type(serving.server.lifecycle.requests.observer) is Observer
    config = await config_of(serving)
    assert (config.capabilities.metrics, list(config.metrics_ranks)) == (False, [])


async def test_what_is_exported_is_what_was_asked_and_answered(engine_server):
    serving = await engine_server(metrics_port=0)
    config = await config_of(serving)
    assert (config.capabilities.metrics, list(config.metrics_ranks)) == (True, [0])
    for number in range(3):
        await serving.generate(ask(f"r{number}", max_tokens=8))
    await serving.generate(ask("wrong", max_tokens=8, model="another"))
    found = await scrape(serving.server.metrics.url)
    assert found("vllm:generation_tokens_total") == 24
    assert found("vllm:prompt_tokens_total") == 15
    assert found("vllm:request_success_total", finished_reason="length") == 3
    assert found("vllm:admission_rejections_total", reason="model_not_found") == 1
    assert found("vllm:time_to_first_token_seconds_count") == 3
    assert found("vllm:inter_token_latency_seconds_count") == 21
    assert found("vllm:request_queue_time_seconds_count") == 3
    assert found("vllm:num_requests_running") == 0


async def test_an_embedding_is_a_request_that_stops(engine_server):
    serving = await engine_server(metrics_port=0)
    request = pb.PreprocessedEmbeddingRequest(token_ids=[{"token_ids": [1, 2, 3]}])
    await serving.embedding.Embed(pb.EmbedRequest(request_id="e", request=request))
    found = await scrape(serving.server.metrics.url)
    assert found("vllm:request_success_total", finished_reason="stop") == 1
    assert found("vllm:prompt_tokens_total") == 3
    assert found("vllm:e2e_request_latency_seconds_count") == 1


async def test_an_engine_may_add_metrics_of_its_own(engine_server):
    serving = await engine_server(engine=StepCounter(), metrics_port=0)
    assert (await scrape(serving.server.metrics.url))("my_starts_total") == 1


async def test_metrics_that_cannot_be_read_cost_no_request_anything(engine_server, caplog):
    engine = Broken()
    serving = await engine_server(engine=engine, metrics_port=0)
    engine.is_broken = True
    with pytest.raises(OSError, match="500"):
        await scrape(serving.server.metrics.url)
    answer = await serving.generate(ask("r", max_tokens=8))
    assert len(answer.tokens()) == 8
    engine.is_broken = False
    assert (await scrape(serving.server.metrics.url))("vllm:generation_tokens_total") == 8


async def test_the_state_can_be_read_before_the_engine_has_started(engine_server):
    serving = await engine_server(metrics_port=0, is_started=False)
    assert (await scrape(serving.server.metrics.url))("enginewire:engine_state", state="starting") == 1


async def test_a_port_in_use_ends_the_server_before_anything_is_loaded(engine_server, socket_folder, caplog):
    serving = await engine_server(metrics_port=0)
    port = int(serving.server.metrics.url.removesuffix("/metrics").rpartition(":")[2])
    options = ServerOptions(engine="mocker", uds=socket_folder / "other.sock", metrics_port=port)
    assert await EngineServer(make_engine(options), options).run() == EXIT_ADDRESS
    assert "--metrics-port" in caplog.text
    assert not options.uds.exists()


async def test_a_server_that_cannot_listen_leaves_no_metrics_behind(engine_server):
    taken = (await engine_server()).server.options.uds
    options = ServerOptions(engine="mocker", uds=taken, metrics_port=0)
    server = EngineServer(make_engine(options), options)
    assert await server.run() == EXIT_ADDRESS
    with pytest.raises(URLError):
        await scrape(server.metrics.url)


def test_without_the_library_the_option_ends_the_command_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert command.main(["--engine", "mocker", "--metrics-port", "0"]) == command.EXIT_USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert line == "--metrics-port needs prometheus_client: pip install 'enginewire[metrics]'"


def test_without_the_option_the_library_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    options = ServerOptions(engine="mocker")
    assert EngineServer(make_engine(options), options).metrics is None
