"""Grammars that would cost too much: refused before they are accepted, or ended alone."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import psutil
import pytest
import pytest_asyncio
import torch

from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import InvalidRequest, StepFailed
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.guided.worker import WALL_SECONDS
from enginewire.torch_engine.requests.params import SamplingParams, StopRules
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.sampling.sampler import sample
from tests.torch_engine.guided.byte_level import TOKENIZER
from tests.torch_engine.guided.engines import BACKENDS, ask, outputs_of, serving, text_of
from tests.torch_engine.tiny import VOCAB


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def engine(folder, request) -> AsyncIterator[TorchEngine]:
    async with serving(folder, request.param) as made:
        for backend in BACKENDS:  # the first grammar of each starts its process
            await made.prepare(ask(regex="a", backend=backend))
        yield made


pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    # By name: what one library refuses is tried with the other.
    backend = "xgrammar" if "structural_tag" in guide else engine._grammars.names[0]
    memory = psutil.Process().memory_info
    ticks, before = [], memory().rss

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)

    ticker = asyncio.create_task(tick())
    begin = time.monotonic()
    with pytest.raises(InvalidRequest) as caught:
        await engine.prepare(ask(**guide, backend=backend))
    took = time.monotonic() - begin
    ticker.cancel()
    assert caught.value.field == f"sampling_options.guided_decoding.{next(iter(guide))}"
    assert took < 2 * WALL_SECONDS
    # On a busy machine the loop may wait for its turn, but not as long as a grammar is compiled.
    assert max((b - a for a, b in pairwise(ticks)), default=0.0) < WALL_SECONDS / 2
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
    assert [row.is_ruled_out for row in sample(torch.zeros(2, VOCAB), sequences).read()] == [True, False]


async def test_resuming_a_grammar_that_is_too_slow_to_follow_blocks_nobody_for_long(engine):
    request = ask(max_tokens=250, ebnf_grammar=AMBIGUOUS)
    request.resume.choices.add(index=0, generated_token_ids=TOKENIZER.encode("ab" * 100).ids)
    begin = time.monotonic()
    with pytest.raises(InvalidRequest):
        await outputs_of(engine, request)
    assert time.monotonic() - begin < 10
