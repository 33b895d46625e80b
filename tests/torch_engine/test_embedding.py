"""Vectors of decoders: those of transformers, whatever else is in the batch, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import torch
import transformers

from enginewire import v1 as pb
from enginewire.server.engines.interface import EmbeddingEngine, GenerateContext, StepOutputs
from enginewire.server.failures import Draining, EngineDead, KvExhausted, NotStarted, StepFailed
from enginewire.torch_engine.core import EngineCore
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.loading import load as loading
from enginewire.torch_engine.options import TorchEngineOptions
from tests.patience import PATIENCE_SECONDS
from tests.torch_engine.embedding_oracle import vectors_of
from tests.torch_engine.tiny import FAMILIES, VOCAB, greedy

LENGTHS = (1, 33, 9, 60, 17)
RANDOM = Random(4)
INPUTS = [[RANDOM.randrange(2, VOCAB) for _ in range(length)] for length in LENGTHS]
PROMPT = [5, 9, 33, 7, 100]
POOLINGS = ("last", "mean", "cls")


def asking(*inputs: list[int], **fields: object) -> pb.PreprocessedEmbeddingRequest:
    sequences = [pb.TokenSequence(token_ids=each) for each in inputs]
    return pb.PreprocessedEmbeddingRequest(token_ids=sequences, **fields)


async def embedded(
    engine: TorchEngine, *inputs: list[int], priority: int = 0, request_id: str = "e", **fields: object
) -> torch.Tensor:
    """The vectors [inputs, size]."""
    context = GenerateContext(request_id, routing=pb.RoutingHints(priority=priority))
    output = await engine.embed(asking(*inputs, **fields), context)
    assert output.prompt_tokens == output.total_tokens == sum(map(len, inputs))
    return torch.tensor([list(each.values) for each in output.embeddings])


async def generated(engine: TorchEngine, max_tokens: int) -> list[int]:
    stream = engine.generate(greedy(PROMPT, max_tokens), GenerateContext("g"))
    return [token async for output in stream for token in output.token_ids]


@asynccontextmanager
async def stopped(engine: TorchEngine) -> AsyncIterator[Callable[[], int]]:
    """An engine that takes no step meanwhile; yields how many commands wait for the next one."""
    reached, opened = threading.Event(), threading.Event()
    thread = engine._thread
    assert thread

    def stop(core: EngineCore) -> None:
        reached.set()
        assert opened.wait(PATIENCE_SECONDS)

    thread.post(stop)
    await until(reached.is_set)
    try:
        yield thread._commands.qsize
    finally:
        opened.set()


def assert_close(vectors: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(vectors, wanted, atol=1e-4, rtol=1e-4)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  # the load has no event
            await asyncio.sleep(0.001)


def holds_anything(load: pb.Load) -> bool:
    return bool(load.running or load.waiting or load.kv_blocks_used)


@asynccontextmanager
async def running(folder: Path, **options: object) -> AsyncIterator[TorchEngine]:
    """A started engine that holds nothing when its test is over."""
    defaults = {"device": "cpu", "dtype": "float32", "max_num_seqs": 8, "num_threads": 1}
    engine = TorchEngine(TorchEngineOptions(model=str(folder), **{**defaults, **options}))
    await engine.start(0)
    try:
        yield engine
        await until(lambda: not holds_anything(engine.load()))
        assert not engine._embedding_waits._waits
    finally:
        await engine.cleanup()


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_vectors_are_those_of_transformers_in_a_batch_of_small_pieces(family, pooling, model_folder):
    wanted = vectors_of(transformers.AutoModel.from_pretrained(model_folder(family)).eval(), INPUTS, pooling)
    async with running(model_folder(family), pooling=pooling, max_num_batched_tokens=13) as engine:
        assert isinstance(engine, EmbeddingEngine)
        assert_close(await embedded(engine, *INPUTS), wanted)


@pytest.mark.parametrize("pooling", POOLINGS)
async def test_an_input_has_the_same_vector_alone_and_in_a_batch(pooling, model_folder):
    async with running(model_folder("qwen3"), pooling=pooling) as engine:
        together = await embedded(engine, *INPUTS)
        alone = [await embedded(engine, each) for each in INPUTS]
        assert_close(together, torch.cat(alone))


@pytest.fixture(params=["waits", "runs ahead"])
def step(request, monkeypatch) -> None:
    """An engine that reads the tokens of a step before the next one, and one that does not."""
    if request.param == "runs ahead":
        monkeypatch.setattr(loading, "is_far", lambda device: True)


@pytest.mark.usefixtures("step")
async def test_inputs_and_outputs_share_batches_without_touching_each_other(model_folder, expected):
    wanted = vectors_of(transformers.AutoModel.from_pretrained(model_folder("llama")).eval(), INPUTS, "mean")
    async with running(model_folder("llama"), pooling="mean", max_num_batched_tokens=16) as engine:
        tokens, vectors, *_ = await asyncio.gather(
            generated(engine, 40), embedded(engine, *INPUTS), generated(engine, 40)
        )
        assert tokens == expected("llama", PROMPT, 40)
        assert_close(vectors, wanted)


@pytest.mark.usefixtures("step")
async def test_a_preempted_input_starts_again_from_nothing(model_folder, expected):
    long = INPUTS[3]
    wanted = vectors_of(transformers.AutoModel.from_pretrained(model_folder("llama")).eval(), [long], "mean")
    tight = {"num_kv_blocks": 6, "max_num_seqs": 2, "max_num_batched_tokens": 2, "max_model_len": 96}
    async with running(model_folder("llama"), pooling="mean", **tight) as engine:
        async with stopped(engine) as num_commands:
            answer = asyncio.create_task(generated(engine, 80))
            await until(lambda: num_commands() == 1)
            vectors = asyncio.create_task(embedded(engine, long))
            await until(lambda: num_commands() == 2)
        tokens = await answer
        assert tokens == expected("llama", PROMPT, 80)
        assert_close(await vectors, wanted)
        assert engine.load().preemptions > 0


async def test_fewer_dimensions_are_the_beginning_at_length_one(model_folder):
    async with running(model_folder("llama")) as engine:
        whole, short = await embedded(engine, *INPUTS), await embedded(engine, *INPUTS, dimensions=7)
        assert_close(short, torch.nn.functional.normalize(whole[:, :7], dim=1))
        assert engine.embedding_size == whole.shape[1]
        assert_close(whole.norm(dim=1), torch.ones(len(INPUTS)))


async def test_vectors_keep_their_length_when_they_are_not_normalised(model_folder):
    network = transformers.AutoModel.from_pretrained(model_folder("llama")).eval()
    wanted = vectors_of(network, INPUTS, "last", normalize=False)
    async with running(model_folder("llama"), normalize_embeddings=False) as engine:
        assert_close(await embedded(engine, *INPUTS), wanted)
        assert_close(await embedded(engine, *INPUTS, dimensions=5), wanted[:, :5])


async def test_an_input_neither_reads_nor_fills_the_prefix_cache(model_folder):
    async with running(model_folder("llama")) as engine:
        await embedded(engine, *INPUTS)
        assert engine.load().kv_blocks_cached == 0


async def test_a_cancelled_call_frees_every_input(model_folder):
    async with running(model_folder("llama"), max_num_batched_tokens=8) as engine:
        call = asyncio.create_task(embedded(engine, *INPUTS * 20))
        await until(lambda: engine.load().running > 0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        steps = engine.load().step
        await until(lambda: not holds_anything(engine.load()))
        assert engine.load().step - steps < 30, "the whole work would take 300"
        await embedded(engine, PROMPT)


async def test_a_call_waits_once_whatever_it_has_of_inputs(model_folder):
    async with running(model_folder("llama"), max_num_seqs=1, max_num_batched_tokens=4) as engine:
        async with stopped(engine):
            calls = [asyncio.create_task(embedded(engine, *INPUTS, request_id=each)) for each in "ab"]
            await asyncio.sleep(0)
            assert engine.load().waiting == 2
        while not all(call.done() for call in calls):
            assert engine.load().waiting <= 2
            await asyncio.sleep(0.001)
        await asyncio.gather(*calls)


async def test_a_drain_hands_back_a_call_whose_inputs_wait(model_folder):
    async with running(model_folder("llama"), max_num_seqs=1, max_num_batched_tokens=1) as engine:
        call = asyncio.create_task(embedded(engine, *INPUTS))
        await until(lambda: engine.load().running > 0)
        await engine.drain()
        with pytest.raises(Draining):
            await call


async def test_the_end_of_the_engine_ends_its_calls(model_folder):
    engine = TorchEngine(TorchEngineOptions(model=str(model_folder("llama")), device="cpu", num_threads=1))
    with pytest.raises(NotStarted):
        await embedded(engine, PROMPT)
    await engine.start(0)
    seen: list[StepOutputs] = []
    engine.set_step_listener(seen.append)
    call = asyncio.create_task(embedded(engine, *INPUTS * 50))
    await asyncio.sleep(0)
    await engine.cleanup()
    with pytest.raises(Exception, match="cancelled"):
        await call
    assert not seen
    with pytest.raises(EngineDead):
        await embedded(engine, PROMPT)


async def test_an_input_whose_vector_is_not_finite_fails_its_own_call_only(model_folder):
    async with running(model_folder("llama")) as engine:
        (await engine._thread.loaded).core._runner.model.embedding[77] = float("nan")
        with pytest.raises(StepFailed, match="no finite vector"):
            await embedded(engine, PROMPT, [77, 3], *INPUTS)
        assert (await embedded(engine, PROMPT)).isfinite().all()


async def test_a_more_urgent_call_overtakes(model_folder):
    async with running(model_folder("llama"), max_num_seqs=1, max_num_batched_tokens=4) as engine:
        first = asyncio.create_task(embedded(engine, *INPUTS * 4, priority=3))
        await until(lambda: engine.load().running > 0)
        second = asyncio.create_task(embedded(engine, *INPUTS, priority=-3))
        done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert done == {second}
        await first


async def test_an_input_that_can_never_fit_is_refused(model_folder):
    async with running(model_folder("llama"), num_kv_blocks=2) as engine:
        with pytest.raises(KvExhausted):
            await embedded(engine, [3] * 33)


async def test_an_input_longer_than_the_cache_is_embedded_behind_a_window(model_folder):
    text = [3 + i % 50 for i in range(33)]
    async with running(model_folder("mistral")) as engine:
        wanted = await embedded(engine, text)
    async with running(model_folder("mistral"), num_kv_blocks=4, block_size=4) as engine:
        assert_close(await embedded(engine, text), wanted)


async def test_the_folder_decides_how_its_vectors_are_made(model_folder, tmp_path):
    for file in model_folder("llama").iterdir():
        (tmp_path / file.name).symlink_to(file)
    stored = tmp_path / "1_Pooling"
    stored.mkdir()
    (stored / "config.json").write_text('{"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}')
    wanted = vectors_of(transformers.AutoModel.from_pretrained(model_folder("llama")).eval(), INPUTS, "mean")
    async with running(tmp_path) as engine:
        assert_close(await embedded(engine, *INPUTS), wanted)
    (stored / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(ModelLoadError, match="pooling_mode_max_tokens is not supported"):
        async with running(tmp_path):
            pass
    async with running(tmp_path, pooling="mean") as engine:
        assert_close(await embedded(engine, *INPUTS), wanted)
