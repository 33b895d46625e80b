"""The engine that docs/writing-an-engine.md shows really serves."""

from __future__ import annotations

import re
import textwrap
import types

from prometheus_client import Counter

from enginewire import v1 as pb
from enginewire.server.engines.interface import LLMEngine, MetricsBindings, MetricsContext
from enginewire.server.engines.iterator_driver import IteratorDriver
from tests.repository import ROOT
from tests.server.metrics.scraping import scrape
from tests.server.serving import ask

PAGE = ROOT / "docs/writing-an-engine.md"


def documented_engine() -> LLMEngine:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    module = types.ModuleType("countdown")
    exec(code[1], module.__dict__)
    return module.CountdownEngine(None)


async def test_the_documented_engine_counts_down(engine_server):
    engine = documented_engine()
    assert isinstance(engine, LLMEngine)
    serving = await engine_server(engine=IteratorDriver(engine))
    answer = await serving.generate(ask("r", prompt=bytes([7, 9]), max_tokens=4))
    assert answer.tokens() == [8, 7, 6, 5]
    assert answer.finishes() == {0: pb.FINISH_REASON_LENGTH}


async def test_the_documented_engine_has_a_name_of_its_own(engine_server):
    serving = await engine_server(engine=IteratorDriver(documented_engine()))
    info = await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())
    assert (info.engine_name, info.engine_version) == ("countdown", "1.0")


async def test_its_metrics_are_exported_as_documented(engine_server):
    engine = documented_engine()
    method = re.findall(r"```python\n(    async def setup_metrics.*?)```", PAGE.read_text(), re.DOTALL)[-1]
    scope = {"Counter": Counter, "MetricsBindings": MetricsBindings, "MetricsContext": MetricsContext}
    exec(textwrap.dedent(method), scope)
    type(engine).setup_metrics = scope["setup_metrics"]
    serving = await engine_server(engine=IteratorDriver(engine), metrics_port=0)
    engine._countdowns.inc()
    assert (await scrape(serving.server.metrics.url))("countdowns_total") == 1
