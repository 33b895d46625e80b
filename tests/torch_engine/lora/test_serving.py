"""Adapters of the torch engine through a real server: loaded, mixed, in use, exchanged, in KV events."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
import transformers

from enginewire import v1 as pb
from enginewire.server.config.options import ServerOptions
from enginewire.server.load_engine import make_engine
from tests.server.admin_calls import admin, load, unload
from tests.server.serving import Serving, ask, detail_of, rest_of
from tests.torch_engine.embedding_oracle import vectors_of
from tests.torch_engine.lora.folders import edit_config, make_adapter, peft_body, peft_greedy
from tests.torch_engine.scheduling.replica import Replica

PROMPT = bytes(range(40, 60))
BLOCK = 4
Oracle = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="session")
def adapters(tmp_path_factory, model_folder) -> tuple[Path, dict[str, Oracle]]:
    """A folder with `one` and `two`, and what peft says with each."""
    root, base = tmp_path_factory.mktemp("served"), model_folder("llama")
    folders = [make_adapter(base, root / name, seed, lora_alpha=8) for seed, name in ((3, "one"), (4, "two"))]
    return root, {folder.name: peft_greedy(base, folder) for folder in folders}


@pytest.fixture
def folder(adapters, tmp_path) -> Path:
    return shutil.copytree(adapters[0], tmp_path / "adapters")


@pytest.fixture
async def serving(engine_server, model_folder, folder) -> Serving:
    options = ServerOptions(
        model=str(model_folder("llama")),
        device="cpu",
        block_size=BLOCK,
        adapter_folder=folder,
        max_num_seqs=8,
    )
    return await engine_server(make_engine(options), adapter_folder=folder)


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert detail_of(refused.value).reason
    return refused.value.code()


async def tokens_of(serving: Serving, request_id: str, adapter: str = "", max_tokens: int = 12) -> list[int]:
    request = ask(request_id, PROMPT, max_tokens, model=adapter)
    request.request.sampling_options.temperature = 0.0
    answer = await serving.generate(request)
    assert answer.failure is None
    return answer.tokens()


async def embed(serving: Serving, adapter: str, *inputs: list[int]) -> torch.Tensor:
    """The vectors [inputs, size]."""
    sequences = [pb.TokenSequence(token_ids=each) for each in inputs]
    request = pb.PreprocessedEmbeddingRequest(token_ids=sequences, model=adapter)
    answer = await serving.embedding.Embed(pb.EmbedRequest(request_id=f"e{adapter}", request=request))
    return torch.tensor([list(each.values) for each in answer.output.embeddings])


async def test_requests_of_one_batch_get_what_peft_says_of_their_adapters(serving, adapters, expected):
    await asyncio.gather(load(serving, "A", "one"), load(serving, "B", "two"))
    names = ["A", "B", "", "B", "A", ""]
    answers = await asyncio.gather(*(tokens_of(serving, f"r{i}", name) for i, name in enumerate(names)))
    oracles = adapters[1]
    wanted = {
        "A": oracles["one"](list(PROMPT), 12),
        "B": oracles["two"](list(PROMPT), 12),
        "": expected("llama", list(PROMPT), 12),
    }
    assert len(set(map(tuple, wanted.values()))) == 3
    assert answers == [wanted[name] for name in names]


async def test_an_adapter_cannot_go_while_it_streams_and_nobody_is_disturbed(serving, adapters, expected):
    await load(serving, "A", "one")
    request = ask("long", PROMPT, 200, model="A")
    request.request.sampling_options.temperature = 0.0
    call = serving.engine.Generate(request)
    first = await call.read()
    assert await code_of(unload(serving, "A")) is grpc.StatusCode.FAILED_PRECONDITION
    other = await tokens_of(serving, "r2")
    rest = [token async for response in rest_of(call) for token in response.output.token_ids]
    assert [*first.output.token_ids, *rest] == adapters[1]["one"](list(PROMPT), 200)
    assert other == expected("llama", list(PROMPT), 12)
    await unload(serving, "A")
    answer = await serving.generate(ask("r3", PROMPT, model="A"))
    assert answer.failure.reason == pb.ERROR_REASON_MODEL_NOT_FOUND


async def test_inputs_are_embedded_with_the_adapter_that_they_name(serving, folder, model_folder):
    await asyncio.gather(load(serving, "A", "one"), load(serving, "B", "two"))
    base = model_folder("llama")
    bodies = {
        "A": peft_body(base, folder / "one"),
        "B": peft_body(base, folder / "two"),
        "": transformers.AutoModel.from_pretrained(base).eval(),
    }
    inputs = [list(PROMPT), [7, 5, 3]]
    answers = await asyncio.gather(*(embed(serving, name, *inputs) for name in bodies))
    wanted = [vectors_of(body, inputs, "last") for body in bodies.values()]
    assert min(float((one - other).norm()) for one, other in combinations(wanted, 2)) > 0.1
    torch.testing.assert_close(torch.stack(answers), torch.stack(wanted), atol=1e-4, rtol=1e-4)
    assert await code_of(embed(serving, "C", *inputs)) is grpc.StatusCode.NOT_FOUND


async def test_a_name_that_comes_back_with_other_weights_finds_no_old_blocks(serving, adapters):
    oracles = adapters[1]
    for round_number, source in enumerate(["one", "two", "one"]):
        assert (await load(serving, "A", source)).rank == 4
        answer = await tokens_of(serving, f"r{round_number}", "A")
        assert answer == oracles[source](list(PROMPT), 12)
        await unload(serving, "A")


async def test_an_adapter_that_does_not_fit_is_refused_and_leaves_nothing(serving, folder, adapters):
    edit_config(folder / "one", use_dora=True)
    shutil.copytree(folder / "two", folder / "torn")
    weights = folder / "torn" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    for source in ("one", "torn"):
        assert await code_of(load(serving, "A", source)) is grpc.StatusCode.INVALID_ARGUMENT
    assert not (await admin(serving).ListAdapters(pb.ListAdaptersRequest())).adapters
    await load(serving, "A", "two")
    assert await tokens_of(serving, "r", "A") == adapters[1]["two"](list(PROMPT), 12)


async def test_kv_events_name_the_adapter_and_no_hash_is_shared(serving):
    await load(serving, "A", "one")
    for name in ("", "A"):
        await tokens_of(serving, f"r{name}", name)
    call = pb.KvServiceStub(serving.channel).SubscribeKvEvents(pb.SubscribeKvEventsRequest())
    replica, hashes = Replica(BLOCK), {"": set(), "A": set()}
    cached = (await serving.until_idle()).kv_blocks_cached
    while len(replica.tokens) < cached:
        events = (await call.read()).events
        replica.read(events)
        for event in events:
            hashes.setdefault(event.stored.lora_name, set()).update(event.stored.block_hashes)
    call.cancel()
    assert set(hashes) == {"", "A"}
    assert len(hashes[""]) == len(hashes["A"]) == cached / 2
    assert not hashes[""] & hashes["A"]


async def test_a_cleaned_up_engine_loads_nothing(serving):
    await serving.engine.Cleanup(pb.CleanupRequest())
    assert await code_of(load(serving, "A", "one")) is grpc.StatusCode.UNAVAILABLE
