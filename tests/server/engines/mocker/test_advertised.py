"""What the shell adds to the engine's own description of itself."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.server.engines.interface import MetricsBindings, MetricsContext
from enginewire.server.engines.mocker.engine import MockerEngine


class MeteredEngine(MockerEngine):
    """Reports metrics for two ranks."""

    metrics_context: MetricsContext | None = None

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        self.metrics_context = context
        return MetricsBindings(dp_ranks=(0, 3))


async def info_of(serving) -> pb.GetEngineInfoResponse:
    return await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())


async def test_metrics_are_bound_at_start_and_their_ranks_advertised(engine_server):
    engine = MeteredEngine()
    serving = await engine_server(engine=engine)
    assert engine.metrics_context == MetricsContext("mocker")
    assert list((await info_of(serving)).config.metrics_ranks) == [0, 3]


async def test_limits_are_advertised_even_where_the_engine_says_nothing(engine_server):
    serving = await engine_server(stream_buffer_tokens=77)
    limits = (await info_of(serving)).config.limits
    assert limits.max_stream_buffer_tokens == 77
    assert limits.max_stop_token_ids > 0, "a default of the contract"


async def test_names_given_to_the_server_serve_the_model(engine_server):
    serving = await engine_server(served_model_name=("shown", "alias"))
    config = (await info_of(serving)).config
    assert (config.served_model_name, list(config.aliases)) == ("shown", ["alias"])
