"""Grammars: outputs match them, whatever the model and the batch, and end where they end."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count, pairwise

import psutil
import pytest
import pytest_asyncio
import torch
from hypothesis import given, settings, strategies as st

from engine_server.failures import EngineDead, EngineError, InvalidRequest, StepFailed, Unsupported
from engine_server.interface import GenerateContext, PreparingEngine, StepOutputs
from engine_server.torch_engine.engine import TorchEngine
from engine_server.torch_engine.model_folder import ModelLoadError
from engine_server.torch_engine.options import TorchEngineOptions
from engine_server.torch_engine.params import SamplingParams, StopRules
from engine_server.torch_engine.sampler import sample
from engine_server.torch_engine.sequence import Request, Sequence
from enginewire import v1 as pb
from tests.engine_server.torch_engine.byte_level import BOS, EOS, TOKENIZER
from tests.engine_server.torch_engine.tiny import VOCAB

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
    "required": ["ok", "tags"],
}
SERIAL = count()
BACKENDS = ("xgrammar", "llguidance")


@pytest.fixture(scope="module")
def folder(model_folder):
    TOKENIZER.save(str(model_folder("qwen2") / "tokenizer.json"))
    return model_folder("qwen2")


def engine_of(folder, backend: str = "auto") -> TorchEngine:
    options = TorchEngineOptions(str(folder), device="cpu", dtype="float32", num_threads=1)
    return TorchEngine(replace(options, guided_backend=backend))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def engine(folder, request) -> AsyncIterator[TorchEngine]:
    made = engine_of(folder, request.param)
    config = await made.start(1)
    assert len(config.capabilities.guided_modes) == 6
    assert isinstance(made, PreparingEngine)
    yield made
    await made.cleanup()


pytestmark = pytest.mark.asyncio(loop_scope="module")


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


def satisfies_schema(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"ok", "tags"} and isinstance(value["ok"], bool) and set(value["tags"]) <= {"a", "b"}


GUIDES = [
    ({"json_schema": json.dumps(SCHEMA)}, satisfies_schema),
    ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    ({"regex": "[0-9]{4}-(ok|no)+"}, re.compile("[0-9]{4}-(ok|no)+").fullmatch),
    (
        {"choice": pb.GuidedChoice(choices=["yes", "no", 'a "quoted" \\ one'])},
        ["yes", "no", 'a "quoted" \\ one'].count,
    ),
    ({"ebnf_grammar": 'root ::= "(" root ")" | "x"'}, re.compile(r"\(*x\)*").fullmatch),
    (
        {
            "structural_tag": json.dumps(
                {"type": "structural_tag", "format": {"type": "const_string", "value": "hi"}}
            )
        },
        "hi".__eq__,
    ),
]


@pytest.mark.parametrize(("guide", "matches"), GUIDES, ids=[next(iter(guide)) for guide, _ in GUIDES])
async def test_every_kind_of_guide_is_followed_by_a_random_model(engine, guide, matches):
    asked = [text_of(engine, ask(seed, **guide)) for seed in range(12)]
    answers = await asyncio.gather(*asked)
    assert {reason for _, reason in answers} <= {"EOS", "LENGTH"}
    complete = [text for text, reason in answers if reason == "EOS"]
    assert len(complete) >= 4
    for text in complete:
        assert matches(text), text


async def test_guided_and_plain_rows_of_one_batch_do_not_touch_each_other(engine):
    requests = [
        ask(seed, 20, **guide)
        for seed, guide in enumerate([{}, {"regex": "[0-9]{9}"}, {}, {"regex": "[a-z]+"}])
    ]
    alone = [tokens_of(await outputs_of(engine, request)) for request in requests]
    together = await asyncio.gather(*(outputs_of(engine, request) for request in requests))
    assert [tokens_of(outputs) for outputs in together] == alone


@pytest.mark.parametrize("cut", [1, 5, 11])
async def test_a_resumed_grammar_goes_on_where_it_was(engine, cut):
    request = ask(3, 60, regex="([a-f]{3}-[0-9]{2},){3}")
    whole = await outputs_of(engine, request)
    request.resume.choices.add(index=0, generated_token_ids=tokens_of(whole)[:cut])
    rest = await outputs_of(engine, request)
    assert tokens_of(whole)[:cut] + tokens_of(rest) == tokens_of(whole)
    assert rest[-1].completion_usage == whole[-1].completion_usage


async def test_a_resumed_part_outside_of_the_grammar_is_refused(engine):
    request = ask(regex="[0-9]+")
    request.resume.choices.add(index=0, generated_token_ids=TOKENIZER.encode("x").ids)
    with pytest.raises(InvalidRequest, match="must follow the grammar"):
        await outputs_of(engine, request)


async def test_every_choice_follows_the_grammar_on_its_own(engine):
    outputs = await outputs_of(engine, ask(n=6, regex="[a-z]{5}"))
    texts = {TOKENIZER.decode(tokens_of(outputs, index)) for index in range(6)}
    assert len(texts) == 6
    assert all(re.fullmatch("[a-z]{5}", text) for text in texts)


async def test_an_output_cut_by_max_tokens_ends_with_length(engine):
    text, reason = await text_of(engine, ask(max_tokens=3, regex="[a-z]{50}"))
    assert reason == "LENGTH"
    assert re.fullmatch("[a-z]+", text)


async def test_a_stop_token_can_only_come_where_the_grammar_is_complete(engine):
    stop = TOKENIZER.token_to_id("a")
    request = ask(regex="[ab]{6}")
    request.eos_token_ids.append(BOS)
    request.stop_conditions.stop_token_ids.append(stop)
    request.sampling_options.logit_bias.add(token_id=stop, bias=100)
    outputs = await outputs_of(engine, request)
    assert tokens_of(outputs) == [*TOKENIZER.encode("bbbbbb").ids, stop]
    assert (reason_of(outputs), outputs[-1].stop_match.token_id) == ("STOP", stop)


async def test_ignoring_eos_a_choice_ends_with_its_grammar(engine):
    request = ask(regex="[ab]{6}")
    request.stop_conditions.ignore_eos = True
    outputs = await outputs_of(engine, request)
    assert (len(TOKENIZER.decode(tokens_of(outputs))), reason_of(outputs)) == (6, "EOS")


async def test_min_tokens_holds_an_end_back_as_long_as_the_grammar_can_go_on(engine):
    request = ask(max_tokens=40, regex="[ab]*")
    request.stop_conditions.min_tokens = 20
    request.sampling_options.logit_bias.add(token_id=EOS, bias=100)
    assert 20 <= len(tokens_of(await outputs_of(engine, request))) <= 22
    request.sampling_options.guided_decoding.regex = "[ab]{3}"
    text, reason = await text_of(engine, request)
    assert (len(text), reason) == (3, "EOS")


async def test_rules_that_leave_the_grammar_nothing_fail_that_request_alone(engine):
    stuck = ask(regex="[0-9]+")
    stuck.sampling_options.allowed_token_ids.extend(TOKENIZER.encode("x").ids)
    healthy = asyncio.create_task(text_of(engine, ask(1, regex="[0-9]{8}")))
    with pytest.raises(EngineError, match="leave no token"):
        await outputs_of(engine, stuck)
    assert re.fullmatch("[0-9]{8}", (await healthy)[0])


HOSTILE = {
    "unknown class": {"regex": "\\p{nope}"},
    "nested repetitions": {"regex": "(a{1,900}){900}"},
    "repetitions of repetitions": {"ebnf_grammar": 'root ::= ((("a"{90}){90}){90}){90}'},
    "rules": {"ebnf_grammar": "root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1}?' for i in range(1200))},
    "deep rules": {"ebnf_grammar": "root ::= " + "(" * 900 + '"a"' + ")" * 900},
    "arrays of arrays": {"json_schema": '{"minItems": 900, "items": {"minItems": 900, "items": {}}}'},
    "a pattern in a schema": {"json_schema": json.dumps({"type": "string", "pattern": "((a{90}){90}){90}"})},
    "open parenthesis": {"regex": "("},
    "long": {"regex": "a" * 65_537},
    "deep parentheses": {"regex": "(" * 32_000 + "a" + ")" * 32_000},
    "no JSON": {"json_schema": "{"},
    "no schema": {"json_schema": "3"},
    "endless": {"json_schema": '{"$ref": "#"}'},
    "a reference to nowhere": {"json_schema": '{"$ref": "#/nope"}'},
    "deep": {"json_schema": '{"items":' * 5000 + "{}" + "}" * 5000},
    "many properties": {
        "json_schema": json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(4000)}})
    },
    "unknown rule": {"ebnf_grammar": "root ::= nope"},
    "endless rule": {"ebnf_grammar": "root ::= root"},
    "no tag": {"structural_tag": "{}"},
}


@pytest.mark.parametrize("guide", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_guide_is_refused_soon_and_blocks_nothing(engine, guide):
    memory = psutil.Process().memory_info
    ticks, before = [], memory().rss

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)

    ticker = asyncio.create_task(tick())
    begin = time.monotonic()
    with pytest.raises(InvalidRequest) as caught:
        await engine.prepare(ask(**guide))
    took = time.monotonic() - begin
    ticker.cancel()
    assert caught.value.field == f"sampling_options.guided_decoding.{next(iter(guide))}"
    assert took < 2.5
    assert max((b - a for a, b in pairwise(ticks)), default=0.0) < 0.3
    assert memory().rss - before < 64 * 2**20


async def test_a_recursion_on_the_left_is_served_at_an_even_pace(engine):
    request = ask(max_tokens=200, ebnf_grammar='root ::= root "a" | "b"')
    request.stop_conditions.min_tokens = 200
    begin = time.monotonic()
    text, _ = await text_of(engine, request)
    assert text == "b" + "a" * 198
    assert time.monotonic() - begin < 10


AMBIGUOUS = """
root ::= a "x"
a ::= "" | "a" | "b" | a a a a | a a a | a a
"""


async def test_a_grammar_that_is_too_slow_to_follow_ends_alone(engine):
    slow = ask(max_tokens=250, ebnf_grammar=AMBIGUOUS)
    slow.sampling_options.allowed_token_ids.extend(TOKENIZER.encode("ab").ids)
    healthy = asyncio.create_task(text_of(engine, ask(1, 250, regex="[0-9]{200}")))
    with pytest.raises(StepFailed):
        await outputs_of(engine, slow)
    assert re.fullmatch("[0-9]{200}", (await healthy)[0])


async def test_a_row_whose_mask_comes_too_late_has_no_token(engine):
    class Late:
        is_over = False

        def accept(self, token_id: int) -> bool:
            return True

        def fill(self, masks: torch.Tensor, row: int) -> bool:
            masks[row] = -1
            return False

    request = Request(GenerateContext("r"), [5], SamplingParams(seed=0), StopRules(99), (0, 0.0, 0))
    sequences = [Sequence(request, 0, matcher=Late()), Sequence(request, 1)]
    assert sample(torch.zeros(2, VOCAB), sequences).valid == [False, True]


async def test_resuming_a_grammar_that_is_too_slow_to_follow_blocks_nobody_for_long(engine):
    request = ask(max_tokens=250, ebnf_grammar=AMBIGUOUS)
    request.resume.choices.add(index=0, generated_token_ids=TOKENIZER.encode("ab" * 100).ids)
    begin = time.monotonic()
    with pytest.raises(InvalidRequest):
        await outputs_of(engine, request)
    assert time.monotonic() - begin < 2


async def test_a_guide_that_was_not_prepared_is_compiled_on_submit(engine):
    steps: asyncio.Queue[StepOutputs] = asyncio.Queue()
    engine.set_step_listener(steps.put_nowait)
    good, bad = GenerateContext("good"), GenerateContext("bad")
    engine.submit(ask(max_tokens=1, regex="[0-9]{7}x"), good)
    engine.submit(ask(regex="(unprepared"), bad)
    assert engine.load().waiting == 2
    ends = {}
    async with asyncio.timeout(20):
        while len(ends) < 2:
            step = await steps.get()
            ends |= dict(step.failures)
            ends |= {context: output.finish_reason for context, output in step.outputs}
    assert ends[good] == pb.FINISH_REASON_LENGTH
    assert isinstance(ends[bad], InvalidRequest)
    assert engine.load().waiting == 0


async def test_a_request_cancelled_while_its_grammar_compiles_ends_as_cancelled(engine):
    steps: asyncio.Queue[StepOutputs] = asyncio.Queue()
    engine.set_step_listener(steps.put_nowait)
    context = GenerateContext("cancelled")
    engine.submit(ask(regex="[0-9]{11}y"), context)
    context.cancel("gone")
    await engine.abort(context)
    async with asyncio.timeout(20):
        step = await steps.get()
    assert [(c, out.finish_reason) for c, out in step.outputs] == [(context, pb.FINISH_REASON_CANCELLED)]


async def test_cleanup_fails_a_request_whose_grammar_is_still_compiling(folder):
    engine = engine_of(folder)
    await engine.start(1)
    steps: asyncio.Queue[StepOutputs] = asyncio.Queue()
    engine.set_step_listener(steps.put_nowait)
    context = GenerateContext("late")
    engine.submit(ask(regex="[0-9]{12}z"), context)
    await engine.cleanup()
    async with asyncio.timeout(5):
        step = await steps.get()
    assert [(c, type(error)) for c, error in step.failures] == [(context, EngineDead)]


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
    tag = GUIDES[-1][0]
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


async def test_a_grammar_that_may_be_empty_ends_without_an_end_token_as_soon_as_it_is_complete(engine):
    request = ask(regex="[ab]*")
    request.stop_conditions.ignore_eos = True
    outputs = await outputs_of(engine, request)
    assert (len(tokens_of(outputs)), reason_of(outputs)) == (0, "EOS")


@given(
    st.lists(
        st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=15, deadline=None)
async def test_a_choice_is_one_of_its_alternatives_whatever_they_hold(engine, choices):
    text, reason = await text_of(engine, ask(choice=pb.GuidedChoice(choices=choices)))
    assert text in choices
    assert reason == "EOS"
