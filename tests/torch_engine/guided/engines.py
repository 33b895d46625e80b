"""Engines with a grammar library, and what they answer to guided requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext, PreparingEngine
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.torch_engine.guided.byte_level import TOKENIZER

SERIAL = count()
BACKENDS = ("xgrammar", "llguidance")


def engine_of(folder, backend: str = "auto", **more: object) -> TorchEngine:
    options = TorchEngineOptions(str(folder), device="cpu", dtype="float32", num_threads=1)
    return TorchEngine(replace(options, guided_backend=backend, **more))


def guided_folder(model_folder: Callable[[str], Path]) -> Path:
    """A model whose tokens are known as text."""
    folder = model_folder("qwen2")
    TOKENIZER.save(str(folder / "tokenizer.json"))
    return folder


@asynccontextmanager
async def serving(folder: Path, backend: str, **more: object) -> AsyncIterator[TorchEngine]:
    made = engine_of(folder, backend, **more)
    config = await made.start(1)
    assert len(config.capabilities.guided_modes) == 6
    assert isinstance(made, PreparingEngine)
    yield made
    await made.cleanup()


def ask(seed: int = 0, max_tokens: int = 120, n: int = 1, **guide: object) -> pb.PreprocessedRequest:
    request = pb.PreprocessedRequest(
        token_ids=[5, 9, 33],
        sampling_options=pb.SamplingOptions(temperature=1.0, seed=seed, n=n),
        stop_conditions=pb.StopConditions(max_tokens=max_tokens),
    )
    if guide:
        request.sampling_options.guided_decoding.CopyFrom(pb.GuidedDecoding(**guide))
    return request


async def outputs_of(engine: TorchEngine, request: pb.PreprocessedRequest) -> list[pb.LLMEngineOutput]:
    return [output async for output in engine.generate(request, GenerateContext(f"r{next(SERIAL)}"))]


def tokens_of(outputs: list[pb.LLMEngineOutput], index: int = 0) -> list[int]:
    return [token for output in outputs if output.index == index for token in output.token_ids]


def reason_of(outputs: list[pb.LLMEngineOutput]) -> str:
    return pb.FinishReason.Name(outputs[-1].finish_reason).removeprefix("FINISH_REASON_")


async def text_of(engine: TorchEngine, request: pb.PreprocessedRequest) -> tuple[str, str]:
    outputs = await outputs_of(engine, request)
    return TOKENIZER.decode(tokens_of(outputs)), reason_of(outputs)
