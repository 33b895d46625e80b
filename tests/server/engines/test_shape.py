"""What an engine's class lacks or writes otherwise is said in a sentence, before anything is called."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.server.engines.base import BaseEngine
from enginewire.server.engines.iterator_driver import IteratorDriver
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.shape import fault_of
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.vllm_engine.engine import VllmEngine
from enginewire.vllm_engine.options import VllmEngineOptions


class Good(BaseEngine):
    async def start(self, worker_id: int) -> pb.EngineConfig:
        return self.config

    async def generate(self, request, context):
        yield pb.LLMEngineOutput()


class Coroutine(Good):
    async def generate(self, request, context):
        return []


class Bare:
    async def start(self, worker_id: int) -> pb.EngineConfig:
        return pb.EngineConfig()

    async def generate(self, request, context):
        yield pb.LLMEngineOutput()


class NoContext(Good):
    async def generate(self, request):
        yield pb.LLMEngineOutput()


class AsyncLoad(Good):
    async def load(self):
        return pb.Load()


class YieldingDrain(Good):
    async def drain(self):
        yield


class Value(Good):
    load = pb.Load()


class HalfStep(Good):
    def submit(self, request, context):
        pass


class HalfEmbedding(Good):
    async def embed(self, request, context):
        return pb.EmbeddingsEngineOutput()


FAULTS = [
    (Bare, "no method abort, drain, cleanup, kv_event_sources, setup_metrics, load, tokenizer; BaseEngine"),
    (Coroutine, "generate is a coroutine: `async def` without a `yield`"),
    (NoContext, r"generate must take \(self, request, context\)"),
    (AsyncLoad, "load is a coroutine: it must be a plain `def`"),
    (YieldingDrain, "drain has a `yield`; it must return"),
    (Value, "load is Load and not a method"),
    (HalfStep, "submit without set_step_listener, stalled_for: a step engine has all of them"),
    (HalfEmbedding, "embed without embedding_size, only_embeds: an engine that embeds has all of them"),
]


@pytest.mark.parametrize(("kind", "sentence"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_has_a_sentence(kind, sentence):
    fault = fault_of(kind())
    assert fault is not None
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(fault)


def test_every_engine_of_ours_has_none():
    ours = (MockerEngine(), TorchEngine(TorchEngineOptions()), VllmEngine(VllmEngineOptions("builtin:demo")))
    for engine in (Good(), *ours, IteratorDriver(Good())):
        assert fault_of(engine) is None
