"""Which library follows a grammar, and what is refused without one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine_server.failures import Unsupported
from engine_server.interface import GenerateContext
from engine_server.torch_engine.engine import TorchEngine
from engine_server.torch_engine.model_folder import ModelLoadError
from enginewire import v1 as pb
from tests.engine_server.torch_engine.guided_engines import (
    BACKENDS,
    ask,
    engine_of,
    guided_folder,
    serving,
    text_of,
)

TAG = json.dumps({"type": "structural_tag", "format": {"type": "const_string", "value": "hi"}})


@pytest.fixture(scope="module")
def folder(model_folder):
    return guided_folder(model_folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def engine(folder, request) -> AsyncIterator[TorchEngine]:
    async with serving(folder, request.param) as made:
        yield made


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_without_a_grammar_library_nothing_is_advertised_and_a_guide_is_refused(folder, monkeypatch):
    for library in BACKENDS:
        monkeypatch.setitem(sys.modules, f"engine_server.torch_engine.guided_{library}", None)
    engine = engine_of(folder)
    config = await engine.start(1)
    assert not config.capabilities.guided_modes
    with pytest.raises(Unsupported):
        engine.submit(ask(json_object=True), GenerateContext("r"))
    await engine.cleanup()


@pytest.mark.parametrize(("missing", "installed"), [BACKENDS, BACKENDS[::-1]])
async def test_with_one_library_alone_its_guides_are_served_and_the_other_is_refused(
    folder, monkeypatch, missing, installed
):
    monkeypatch.setitem(sys.modules, f"engine_server.torch_engine.guided_{missing}", None)
    engine = engine_of(folder)
    config = await engine.start(1)
    assert (pb.GUIDED_MODE_STRUCTURAL_TAG in config.capabilities.guided_modes) == (installed == "xgrammar")
    assert re.fullmatch("[0-9]{5}", (await text_of(engine, ask(regex="[0-9]{5}")))[0])
    with pytest.raises(Unsupported, match=f"must be one of {installed}$"):
        await engine.prepare(ask(regex="[0-9]{5}", backend=missing))
    await engine.cleanup()


async def test_a_default_library_that_is_not_installed_ends_the_start(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "engine_server.torch_engine.guided_llguidance", None)
    engine = engine_of(folder, "llguidance")
    with pytest.raises(ModelLoadError, match="guided_backend: llguidance is not installed"):
        await engine.start(1)
    await engine.cleanup()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_request_chooses_its_library_whatever_the_default(engine, backend):
    default, other = (list(engine._grammars._compilers[name]._grammars) for name in engine._grammars.names)
    text, reason = await text_of(engine, ask(regex="[0-9]{13}q", max_tokens=40, backend=backend))
    assert (re.fullmatch("[0-9]{13}q", text) is not None, reason) == (True, "EOS")
    compiled = [guide.backend for guide in engine._grammars._compilers[backend]._grammars]
    assert compiled[-1] == backend
    assert len(compiled) > len(default if backend == engine._grammars.names[0] else other)


async def test_a_structural_tag_goes_to_the_library_that_can_follow_it(engine):
    tag = {"structural_tag": TAG}
    assert (await text_of(engine, ask(**tag)))[0] == "hi"
    with pytest.raises(Unsupported, match="not supported by llguidance") as caught:
        await engine.prepare(ask(**tag, backend="llguidance"))
    assert caught.value.field == "sampling_options.guided_decoding.structural_tag"


async def test_what_no_grammar_library_can_do_is_refused_by_name(engine):
    for modifier in ({"whitespace_pattern": " ?"}, {"backend": "other"}):
        with pytest.raises(Unsupported) as caught:
            await engine.prepare(ask(json_object=True, **modifier))
        assert caught.value.field == f"sampling_options.guided_decoding.{next(iter(modifier))}"
    assert str(caught.value).endswith(f"must be one of {', '.join(engine._grammars.names)}")
