"""Adapters in vLLM, beside the torch engine on the same files."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from tests.vllm_engine.live.conftest import TORCH, VLLM, Server, Start
from tests.vllm_engine.live.test_answers import PATIENCE_SECONDS, connection, outputs, request, tokens_of

ADAPTERS = ("one", "two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters of the demo model."""
    made = tmp_path_factory.mktemp("adapters")
    subprocess.run([sys.executable, ".ci/make/adapters.py", str(made), *ADAPTERS], check=True)
    return made


@pytest.fixture(scope="module")
def servers(start: Start, folder: Path) -> Iterator[tuple[Server, Server]]:
    """vLLM and the torch engine, both with the adapters loaded."""
    options = ("--adapter-folder", str(folder), "--max-loras", str(len(ADAPTERS) + 1))
    made = start(*VLLM, *options), start(*TORCH, *options)
    for server in made:
        server.wait_ready()
        with admin(server) as stub:
            for name in ADAPTERS:
                stub.LoadAdapter(pb.LoadAdapterRequest(name=name, source=name), timeout=PATIENCE_SECONDS)
    yield made
    for server in made:
        server.end()


@contextlib.contextmanager
def admin(server: Server) -> Iterator[pb.AdminServiceStub]:
    with connection(server) as channel:
        yield pb.AdminServiceStub(channel)


def adapted_request(name: str) -> pb.PreprocessedRequest:
    made = request("Who are you?")
    made.routing.lora_name = name
    return made


def test_greedy_tokens_of_an_adapter_are_those_of_the_torch_engine(servers):
    vllm, torch = servers
    found = {name: tokens_of(outputs(vllm, adapted_request(name))) for name in ("", *ADAPTERS)}
    assert found == {name: tokens_of(outputs(torch, adapted_request(name))) for name in found}
    assert len(set(map(tuple, found.values()))) == len(found)


def test_an_adapter_that_takes_the_name_of_another_answers_with_its_own_cache(servers):
    vllm, _ = servers
    one, two = (tokens_of(outputs(vllm, adapted_request(name))) for name in ADAPTERS)
    with admin(vllm) as stub:
        stub.UnloadAdapter(pb.UnloadAdapterRequest(name="one"), timeout=PATIENCE_SECONDS)
        stub.LoadAdapter(pb.LoadAdapterRequest(name="one", source="two"), timeout=PATIENCE_SECONDS)
        assert tokens_of(outputs(vllm, adapted_request("one"))) == two != one
        stub.UnloadAdapter(pb.UnloadAdapterRequest(name="one"), timeout=PATIENCE_SECONDS)
        stub.LoadAdapter(pb.LoadAdapterRequest(name="one", source="one"), timeout=PATIENCE_SECONDS)
    assert tokens_of(outputs(vllm, adapted_request("one"))) == one


def test_the_model_answers_as_alone_beside_as_many_adapters_as_there_may_be(servers):
    """vLLM for CPUs would compute it with the adapter in its last place."""
    vllm, _ = servers
    alone = tokens_of(outputs(vllm, adapted_request("")))
    with admin(vllm) as stub, ThreadPoolExecutor() as callers:
        stub.LoadAdapter(pb.LoadAdapterRequest(name="three", source="two"), timeout=PATIENCE_SECONDS)
        asked = [adapted_request(name) for name in ("", "one", "two", "three")] * 2
        heard = [tokens_of(each) for each in callers.map(partial(outputs, vllm), asked)]
        stub.UnloadAdapter(pb.UnloadAdapterRequest(name="three"), timeout=PATIENCE_SECONDS)
    assert heard[::4] == [alone, alone]


def refused(server: Server, source: str) -> grpc.StatusCode:
    """How loading an adapter is answered."""
    with admin(server) as stub, pytest.raises(grpc.RpcError) as found:
        stub.LoadAdapter(pb.LoadAdapterRequest(name=source, source=source), timeout=PATIENCE_SECONDS)
    return found.value.code()


def test_what_vllm_would_read_and_nobody_should_is_refused(servers, folder):
    """vLLM loads pickles where there is nothing else."""
    pickled = shutil.copytree(folder / "one", folder / "pickled")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    assert refused(servers[0], "pickled") == grpc.StatusCode.INVALID_ARGUMENT


def test_an_adapter_that_does_not_fit_the_model_is_refused_and_the_engine_lives(servers, folder):
    misfit = shutil.copytree(folder / "one", folder / "misfit")
    config = json.loads((misfit / "adapter_config.json").read_text())
    (misfit / "adapter_config.json").write_text(json.dumps(config | {"r": 2}))
    weights = (misfit / "adapter_model.safetensors").read_bytes()
    (misfit / "adapter_model.safetensors").write_bytes(weights.replace(b"q_proj", b"k_norm"))
    assert refused(servers[0], "misfit") == grpc.StatusCode.INVALID_ARGUMENT
    assert tokens_of(outputs(servers[0], adapted_request("")))
