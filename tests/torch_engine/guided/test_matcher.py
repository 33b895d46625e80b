"""Grammars: outputs match them, whatever the model and the batch, and end where they end."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import EngineDead, EngineError, InvalidRequest
from tests.patience import PATIENCE_SECONDS
from tests.torch_engine.guided.byte_level import BOS, EOS, TOKENIZER
from tests.torch_engine.guided.engines import (
    ask,
    engine_of,
    outputs_of,
    reason_of,
    text_of,
    tokens_of,
)

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
    "required": ["ok", "tags"],
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


def satisfies_schema(text: str) -> bool:
    return Draft202012Validator(SCHEMA).is_valid(json.loads(text))


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


STRICT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[a-z]{2}$"},
        "size": {"type": "integer", "minimum": 3, "maximum": 40},
        "kind": {"oneOf": [{"const": "ok"}, {"type": "integer", "multipleOf": 5, "minimum": 5}]},
    },
    "required": ["id", "size", "kind"],
    "additionalProperties": False,
}


def is_strict(text: str) -> bool:
    return Draft202012Validator(STRICT).is_valid(json.loads(text))


async def test_every_choice_of_many_keeps_the_whole_schema_and_one_that_is_cut_says_so(engine):
    outputs = await outputs_of(engine, ask(5, 200, n=6, json_schema=json.dumps(STRICT)))
    ends = {output.index: output.finish_reason for output in outputs if output.finish_reason}
    assert set(ends.values()) <= {pb.FINISH_REASON_EOS, pb.FINISH_REASON_LENGTH}
    complete = [index for index, reason in ends.items() if reason == pb.FINISH_REASON_EOS]
    assert complete
    assert all(is_strict(TOKENIZER.decode(tokens_of(outputs, index))) for index in complete)


@pytest.mark.parametrize("cut", [2, 9, 17])
async def test_an_answer_resumed_inside_its_schema_keeps_it(engine, cut):
    request = ask(2, 200, json_schema=json.dumps(STRICT))
    whole = await outputs_of(engine, request)
    request.resume.choices.add(index=0, generated_token_ids=tokens_of(whole)[:cut])
    rest = tokens_of(await outputs_of(engine, request))
    assert tokens_of(whole)[:cut] + rest == tokens_of(whole)
    assert reason_of(whole) == "LENGTH" or is_strict(TOKENIZER.decode(tokens_of(whole)))


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


async def test_a_guide_that_was_not_prepared_is_compiled_on_submit(engine):
    steps: asyncio.Queue[StepOutputs] = asyncio.Queue()
    engine.set_step_listener(steps.put_nowait)
    good, bad = GenerateContext("good"), GenerateContext("bad")
    engine.submit(ask(max_tokens=1, regex="[0-9]{7}x"), good)
    engine.submit(ask(regex="(unprepared"), bad)
    assert engine.load().waiting == 2
    ends = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
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
    async with asyncio.timeout(PATIENCE_SECONDS):
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
    async with asyncio.timeout(PATIENCE_SECONDS):
        step = await steps.get()
    assert [(c, type(error)) for c, error in step.failures] == [(context, EngineDead)]


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
