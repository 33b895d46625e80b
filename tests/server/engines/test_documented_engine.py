"""The engine that docs/writing-an-engine.md shows really serves."""

from __future__ import annotations

import asyncio
import re
import textwrap
import types
from collections.abc import Callable

from prometheus_client import Counter

from enginewire import v1 as pb
from enginewire.server.engines.interface import LLMEngine, MetricsBindings, MetricsContext, Tokenizer
from enginewire.server.engines.iterator_driver import IteratorDriver
from enginewire.server.new_engine.command import files_of
from tests.repository import ROOT
from tests.server.serving import ask
from tests.server.telemetry.metrics.scraping import scrape

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/writing-an-engine.md").read_text(), re.DOTALL)


def documented_engine() -> LLMEngine:
    module = types.ModuleType("countdown")
    exec(BLOCKS[0], module.__dict__)
    return module.CountdownEngine(None)


def documented_method(name: str, scope: dict[str, object]) -> Callable[..., object]:
    (code,) = [block for block in BLOCKS if f"def {name}(" in block and block.startswith(" ")]
    exec(textwrap.dedent(code), scope)
    return scope[name]


def test_the_documented_engine_is_the_one_that_a_new_engine_begins_with():
    assert BLOCKS[0] == files_of("countdown")["countdown.py"]


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
    assert (info.engine_name, info.engine_version) == ("countdown", "0.1")


async def test_its_metrics_are_exported_as_documented(engine_server):
    engine = documented_engine()
    scope = {"Counter": Counter, "MetricsBindings": MetricsBindings, "MetricsContext": MetricsContext}
    type(engine).setup_metrics = documented_method("setup_metrics", scope)
    serving = await engine_server(engine=IteratorDriver(engine), metrics_port=0)
    engine._countdowns.inc()
    assert (await scrape(serving.server.metrics.url))("countdowns_total") == 1


async def test_its_tokenizer_is_offered_as_documented(engine_server, tmp_path):
    names = ["chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    engine = documented_engine()
    engine.folder = tmp_path
    engine.config.capabilities.tokenizer = True
    type(engine).tokenizer = documented_method("tokenizer", {"Tokenizer": Tokenizer})
    serving = await engine_server(engine=IteratorDriver(engine))
    answers = [item async for item in serving.discovery.GetTokenizer(pb.GetTokenizerRequest())]
    assert [file.name for file in answers[0].manifest.files] == names
    assert [answer.chunk.data for answer in answers[1:]] == [name.encode() for name in names]


async def test_no_more_than_max_num_seqs_are_answered_at_once_and_the_others_are_counted(engine_server):
    engine = documented_engine()
    serving = await engine_server(engine=IteratorDriver(engine))
    engine.config.max_num_seqs = 2
    answers = [asyncio.create_task(serving.generate(ask(f"r{i}", max_tokens=200))) for i in range(5)]
    await serving.until(lambda load: (load.running, load.waiting) == (2, 3))
    assert [len((await answer).tokens()) for answer in answers] == [200] * 5
    await serving.until(lambda load: (load.running, load.waiting) == (0, 0))
