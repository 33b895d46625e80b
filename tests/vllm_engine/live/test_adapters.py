"""Adapters in vLLM, beside the torch engine on the same files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from tests.vllm_engine.live.conftest import ADAPTERS, Server
from tests.vllm_engine.live.test_answers import PATIENCE_SECONDS, connection, outputs, request, tokens_of

pytestmark = pytest.mark.usefixtures("adapted")


@pytest.fixture(scope="module")
def adapted(vllm: Server, torch: Server) -> None:
    """Both engines have loaded the adapters."""
    for server in (vllm, torch):
        for name in ADAPTERS:
            with admin(server) as stub:
                stub.LoadAdapter(pb.LoadAdapterRequest(name=name, source=name), timeout=PATIENCE_SECONDS)


@contextlib.contextmanager
def admin(server: Server) -> Iterator[pb.AdminServiceStub]:
    with connection(server) as channel:
        yield pb.AdminServiceStub(channel)


def adapted_request(name: str) -> pb.PreprocessedRequest:
    made = request("Who are you?")
    made.routing.lora_name = name
    return made


def test_greedy_tokens_of_an_adapter_are_those_of_the_torch_engine(vllm, torch):
    found = {name: tokens_of(outputs(vllm, adapted_request(name))) for name in ("", *ADAPTERS)}
    assert found == {name: tokens_of(outputs(torch, adapted_request(name))) for name in found}
    assert len(set(map(tuple, found.values()))) == len(found)


def test_an_adapter_that_takes_the_name_of_another_answers_with_its_own_cache(vllm):
    one, two = (tokens_of(outputs(vllm, adapted_request(name))) for name in ADAPTERS)
    with admin(vllm) as stub:
        stub.UnloadAdapter(pb.UnloadAdapterRequest(name="one"), timeout=PATIENCE_SECONDS)
        stub.LoadAdapter(pb.LoadAdapterRequest(name="one", source="two"), timeout=PATIENCE_SECONDS)
        assert tokens_of(outputs(vllm, adapted_request("one"))) == two != one
        stub.UnloadAdapter(pb.UnloadAdapterRequest(name="one"), timeout=PATIENCE_SECONDS)
        stub.LoadAdapter(pb.LoadAdapterRequest(name="one", source="one"), timeout=PATIENCE_SECONDS)
    assert tokens_of(outputs(vllm, adapted_request("one"))) == one


def test_an_adapter_that_is_a_pickle_or_too_large_is_refused_by_its_field(vllm, adapters):
    folder = Path(adapters[1])
    for name, change in (("pickled", ("safetensors", "bin")), ("large", ('"r": 4', '"r": 400'))):
        copy = folder / name
        copy.mkdir()
        for file in (folder / "one").iterdir():
            content = file.read_bytes().replace(*map(str.encode, change)) if file.suffix == ".json" else b""
            (copy / file.name.replace(*change)).write_bytes(content or file.read_bytes())
        with admin(vllm) as stub, pytest.raises(grpc.RpcError) as refused:
            stub.LoadAdapter(pb.LoadAdapterRequest(name=name, source=name), timeout=PATIENCE_SECONDS)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
