"""Which library follows a grammar, and what is refused without one."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import Future

import pytest

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import EngineDead, InvalidRequest, QueueFull, StepFailed, Unsupported
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.guided import backends as guided_backends
from enginewire.torch_engine.guided.backends import GuidedBackends
from enginewire.torch_engine.guided.matcher import CompiledGuide
from enginewire.torch_engine.requests.params import Guide
from tests.torch_engine.guided.engines import BACKENDS, ask, engine_of, serving, text_of

TAG = json.dumps({"type": "structural_tag", "format": {"type": "const_string", "value": "hi"}})


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_without_a_grammar_library_nothing_is_advertised_and_a_guide_is_refused(folder, monkeypatch):
    for library in BACKENDS:
        monkeypatch.setitem(sys.modules, f"enginewire.torch_engine.guided.{library}", None)
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
    monkeypatch.setitem(sys.modules, f"enginewire.torch_engine.guided.{missing}", None)
    engine = engine_of(folder)
    config = await engine.start(1)
    assert (pb.GUIDED_MODE_STRUCTURAL_TAG in config.capabilities.guided_modes) == (installed == "xgrammar")
    assert re.fullmatch("[0-9]{5}", (await text_of(engine, ask(regex="[0-9]{5}")))[0])
    with pytest.raises(Unsupported, match=f"must be one of {installed}$"):
        await engine.prepare(ask(regex="[0-9]{5}", backend=missing))
    await engine.cleanup()


async def test_a_default_library_that_is_not_installed_ends_the_start(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "enginewire.torch_engine.guided.llguidance", None)
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
    for modifier in ({"whitespace_pattern": "x*"}, {"whitespace_pattern": " {9999}"}, {"backend": "other"}):
        with pytest.raises(Unsupported) as caught:
            await engine.prepare(ask(json_object=True, **modifier))
        assert caught.value.field == f"sampling_options.guided_decoding.{next(iter(modifier))}"
    assert str(caught.value).endswith(f"must be one of {', '.join(engine._grammars.names)}")


async def test_white_space_is_what_the_request_asks_for_else_what_the_engine_was_told(folder):
    one = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    guide = {"json_schema": json.dumps({**one, "additionalProperties": False})}
    async with serving(folder, "auto", guided_disable_any_whitespace=True) as engine:
        for seed in range(3):
            assert await text_of(engine, ask(seed, **guide)) == ('{"a": 1}', "EOS")
            text, reason = await text_of(engine, ask(seed, **guide, whitespace_pattern=r"[ \n]{3}"))
            assert reason == "EOS"
            assert re.fullmatch("_?".join(["{", '"a"', ":", "1", "}"]), re.sub(r"[ \n]{3}", "_", text))
            assert re.search(r"\s", text)


async def test_what_the_first_library_refuses_the_next_one_follows(folder):
    long = "a" * 65_536  # more than xgrammar compiles in the time it has
    async with serving(folder, "xgrammar") as engine:
        with pytest.raises(InvalidRequest, match="too long or too much memory"):
            await engine.prepare(ask(regex=long, backend="xgrammar"))
        assert await text_of(engine, ask(max_tokens=5, regex=long)) == ("aaaaa", "LENGTH")


BOUNDED = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}}, "required": ["a"]}


async def test_a_schema_goes_to_the_library_that_keeps_all_of_it(engine):
    for seed in range(4):
        text, reason = await text_of(engine, ask(seed, json_schema=json.dumps(BOUNDED)))
        assert reason == "LENGTH" or len(json.loads(text)["a"]) <= 2
    with pytest.raises(InvalidRequest, match="maxLength at #/properties/a is not followed by xgrammar"):
        await engine.prepare(ask(json_schema=json.dumps(BOUNDED), backend="xgrammar"))


async def test_a_keyword_that_no_library_keeps_is_refused_with_its_place(engine):
    unique = json.dumps({"type": "array", "items": {"uniqueItems": True}})
    with pytest.raises(InvalidRequest) as caught:
        await engine.prepare(ask(json_schema=unique))
    assert caught.value.field == "sampling_options.guided_decoding.json_schema"
    for name in BACKENDS:
        assert f"uniqueItems at #/items is not followed by {name}" in str(caught.value)


async def test_with_xgrammar_alone_what_it_would_ignore_is_refused(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "enginewire.torch_engine.guided.llguidance", None)
    async with serving(folder, "xgrammar") as engine:
        with pytest.raises(
            InvalidRequest, match="json_schema: maxLength at #/properties/a is not followed by"
        ):
            await engine.prepare(ask(json_schema=json.dumps(BOUNDED)))


Answer = Future[CompiledGuide]


class Library:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Guide, Answer]] = []
        self.is_full = False

    def compile(self, guide: Guide) -> Answer:
        if self.is_full:
            raise QueueFull("full", retry_after=1.0)
        answer = Answer()
        self.asked.append((guide, answer))
        return answer

    def takes(self, compiled: object) -> None:
        self.asked[-1][1].set_result(compiled)

    def fails(self, error: Exception) -> None:
        self.asked[-1][1].set_exception(error)


@pytest.fixture
def both() -> tuple[Library, Library]:
    return Library(), Library()


@pytest.fixture
def backends(both) -> GuidedBackends:
    return GuidedBackends(dict(zip(BACKENDS, both, strict=True)))


FIRST = InvalidRequest("guide: the first says no", field="guide")
SECOND = InvalidRequest("guide: the second says no", field="guide")
REGEX = Guide("regex", "a")


async def test_who_takes_what_another_refused_is_asked_first_next_time(backends, both):
    answer = backends.compile(REGEX)
    both[0].fails(FIRST)
    both[1].takes("compiled")
    assert answer.result(0) == "compiled"
    backends.compile(REGEX)
    assert [len(library.asked) for library in both] == [1, 2]


async def test_what_nobody_takes_is_refused_in_the_words_of_all_and_not_remembered(backends, both):
    answer = backends.compile(REGEX)
    both[0].fails(FIRST)
    assert not answer.done()
    both[1].fails(SECOND)
    refusal = answer.exception(0)
    assert (str(refusal), refusal.field) == ("guide: the first says no; the second says no", "guide")
    backends.compile(REGEX)
    assert [len(library.asked) for library in both] == [2, 1]


async def test_a_reason_that_all_give_is_told_once(backends, both):
    answer = backends.compile(REGEX)
    both[0].fails(FIRST)
    both[1].fails(InvalidRequest(str(FIRST), field="guide"))
    assert str(answer.exception(0)) == "guide: the first says no"


async def test_who_names_a_library_gets_its_refusal(backends, both):
    answer = backends.compile(Guide("regex", "a", BACKENDS[0]))
    both[0].fails(FIRST)
    assert (answer.exception(0), both[1].asked) == (FIRST, [])


async def test_only_a_refusal_leads_to_the_next_library(backends, both):
    answer = backends.compile(REGEX)
    both[0].fails(StepFailed("no answer"))
    assert (str(answer.exception(0)), both[1].asked) == ("no answer", [])
    other = backends.compile(REGEX)
    both[0].asked[-1][1].cancel()
    assert isinstance(other.exception(0), EngineDead)


async def test_an_engine_that_closes_while_the_next_library_is_asked_says_so(backends, both, caplog):
    answer = backends.compile(REGEX)
    both[0].fails(FIRST)
    both[1].asked[-1][1].cancel()
    assert isinstance(answer.exception(0), EngineDead)
    assert caplog.text == ""


async def test_the_next_library_may_have_too_much_to_do(backends, both):
    answer = backends.compile(REGEX)
    both[1].is_full = True
    both[0].fails(FIRST)
    assert isinstance(answer.exception(0), QueueFull)


async def test_old_guides_are_forgotten(backends, both, monkeypatch):
    monkeypatch.setattr(guided_backends, "MAX_REMEMBERED", 2)
    for text in ("a", "b", "c", "a"):
        backends.compile(Guide("regex", text))
        both[0].fails(FIRST)
        both[1].takes(text)
    assert [guide.text for guide, _ in both[0].asked] == ["a", "b", "c", "a"]
