"""What is drafted changes nothing but the number of steps."""

from __future__ import annotations

from random import Random

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import StepFailed
from enginewire.torch_engine.options import SpeculativeConfig
from enginewire.torch_engine.scheduling.drafting.drafter import Drafting
from tests.long import long
from tests.torch_engine.drafting.drafters import KINDS, draft_with
from tests.torch_engine.drafting.requests import (
    GUIDE,
    Alternating,
    draw,
    follow_guides,
    parts,
    prompt_of,
)
from tests.torch_engine.tiny import CoreUnderTest, greedy

SMALL = {"num_kv_blocks": 24, "block_size": 4, "max_num_batched_tokens": 24, "max_model_len": 80}
NGRAM = SpeculativeConfig(5, prompt_lookup_min=1, prompt_lookup_max=3)


def check_blocks(engine: CoreUnderTest) -> None:
    """Between two steps nobody holds a block that has nothing in it."""
    scheduler = engine.core.scheduler
    for sequence in scheduler.running:
        assert sequence.num_pending_tokens >= 1 or sequence.is_idle
        assert len(sequence.block_table) == scheduler.pool.blocks_for(sequence.num_computed_tokens)
    held = {block for sequence in scheduler.running for block in sequence.held_blocks}
    assert scheduler.pool.num_used == len(held)
    assert all(not sequence.block_table for sequence in scheduler.waiting)


def run_all(engine: CoreUnderTest, requests: list[pb.PreprocessedRequest]) -> list[tuple[object, ...]]:
    contexts = []
    for request in requests:
        contexts.append(engine.add(request))
        engine.step()
        check_blocks(engine)
    while engine.core.has_work:
        if engine.core.scheduler.running and engine.core.counters.steps % 4 == 0:
            engine.preempt_one()
        engine.step()
        check_blocks(engine)
    engine.run()
    assert engine.num_failed_batches == 0
    return [parts(engine.answers[context]) for context in contexts]


@pytest.mark.parametrize(
    ("seed", "family"), [(1, "llama"), (2, "mistral"), (3, "qwen2"), pytest.param(4, "llama", marks=long)]
)
def test_drawn_requests_get_the_same_whatever_is_drafted(seed, family, load):
    random = Random(seed)
    requests = [draw(random, prompt_of(random, random.choice([3, 9, 18, 30]))) for _ in range(10)]
    plain = load(family)
    follow_guides(plain)
    wanted = [parts(plain.answer(request)) for request in requests]
    answers = {
        (tuple(request.token_ids), index): tokens
        for request, seen in zip(requests, wanted, strict=True)
        for index, tokens in seen[0].items()
    }
    for kind in (*KINDS, "ngram"):
        engine = load(family, **SMALL, speculative_config=NGRAM if kind == "ngram" else None)
        follow_guides(engine)
        if kind == "ngram":  # as if drafts cost nothing, whatever was measured
            engine.core.scheduler.drafting = Drafting(5, NGRAM.lookup, 0.001)
        else:
            draft_with(engine, kind, answers)
        for _ in range(2):  # the second time after what the first one has left in the prefix cache
            assert run_all(engine, requests) == wanted, f"seed {seed}, {kind}"
        drafts = engine.core.statistics.drafts
        assert drafts.num_drafts > 5
        assert kind == "ngram" or (sum(drafts.num_accepted) > 0) == (kind != "wrong")
        assert engine.core.scheduler.num_preemptions > 1


def bits(answer) -> list[list[float]]:
    return [[*row.token_logprobs, *row.top_logprobs] for row in answer.logprobs]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_with_batch_invariant_it_is_the_same_bit_for_bit(kind, temperature, load):
    options = {"batch_invariant": True, "dtype": "float32", "block_size": 4}
    requests = [greedy(prompt_of(Random(seed), 5 + 9 * seed), 20) for seed in range(3)]
    for request in requests:
        request.sampling_options.temperature = temperature
        request.sampling_options.seed = 3
        request.output_options.logprobs = 3
    plain, engine = load("llama", **options), load("llama", **options)
    wanted = [plain.answer(request) for request in requests]
    answers = {
        (tuple(request.token_ids), 0): answer.tokens[0]
        for request, answer in zip(requests, wanted, strict=True)
    }
    draft_with(engine, kind, answers)
    contexts = [engine.add(request) for request in requests]
    engine.run()
    assert engine.core.statistics.drafts.num_tokens > 0
    for context, answer in zip(contexts, wanted, strict=True):
        assert engine.answers[context].tokens == answer.tokens
        assert bits(engine.answers[context]) == bits(answer)


def drafting(load, kind: str, request: pb.PreprocessedRequest, tokens: list[int], **options: object):
    engine = load("llama", **options)
    made = draft_with(engine, kind, {(tuple(request.token_ids), 0): tokens})
    return engine, made.drafters


PROMPT = [5, 9, 33, 7, 100, 12]


@pytest.fixture
def plain(load) -> list[int]:
    return load("llama").answer(greedy(PROMPT, 24)).tokens[0]


def test_right_drafts_save_steps_and_the_usage_says_how_many(load, plain):
    request = greedy(PROMPT, 24)
    engine, drafters = drafting(load, "right", request, plain)
    answer = engine.answer(request)
    assert answer.tokens[0] == plain
    # One step for the prompt, then drafts of 7, 7 and 6: the last token of a choice is never drafted.
    assert engine.core.counters.steps == 4
    assert [drafter.judged for drafter in drafters] == [[(7, 7), (7, 7), (6, 6)]]
    used = answer.terminals[0].completion_usage
    assert (used.completion_tokens, used.prompt_tokens) == (24, 6)
    details = used.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (20, 0)
    assert engine.core.counters.tokens_generated == 24


def test_wrong_drafts_cost_no_token_and_are_counted(load, plain):
    request = greedy(PROMPT, 24)
    engine, drafters = drafting(load, "wrong", request, plain)
    answer = engine.answer(request)
    assert answer.tokens[0] == plain
    assert engine.core.counters.steps == 24
    details = answer.terminals[0].completion_usage.completion_tokens_details
    assert details.accepted_prediction_tokens == 0
    assert details.rejected_prediction_tokens == sum(number for number, _ in drafters[0].judged) > 100


@pytest.mark.parametrize("place", [1, 3, 8, 9, 16, 17])
def test_a_choice_ends_where_it_ends_whatever_is_drafted_behind(place, load, plain):
    request = greedy(PROMPT, 24)
    request.stop_conditions.stop_token_ids.append(plain[place])
    end = plain.index(plain[place])
    engine, drafters = drafting(load, "right", request, plain)
    answer = engine.answer(request)
    assert answer.tokens[0] == plain[: end + 1]
    assert answer.terminals[0].finish_reason == pb.FINISH_REASON_STOP
    for drafter in drafters:  # what would end it is not drafted, and nothing behind it
        assert drafter.num_accepted == drafter.num_drafted <= end


def test_a_resumed_choice_goes_on_with_drafts(load, plain):
    for cut in (0, 1, 9, 23):
        request = greedy(PROMPT, 24)
        engine, _ = drafting(load, "half", request, plain)
        request.resume.choices.add(index=0, generated_token_ids=plain[:cut])
        rest = engine.answer(request)
        assert rest.tokens[0] == plain[cut:]
        assert rest.terminals[0].completion_usage.completion_tokens == 24


def test_an_aborted_request_leaves_nothing_behind(load, plain):
    request = greedy(PROMPT, 24)
    engine, _ = drafting(load, "half", request, plain, block_size=4)
    context, other = engine.add(request), engine.add(greedy([8, 8, 9], 12))
    for _ in range(3):
        engine.step()
    assert engine.core.statistics.drafts.num_drafts > 0
    engine.core.live.abort(context)
    check_blocks(engine)
    engine.run()
    assert engine.answers[context].terminals[0].finish_reason == pb.FINISH_REASON_CANCELLED
    assert engine.answers[context].tokens[0] == plain[: len(engine.answers[context].tokens[0])]
    assert engine.answers[other].tokens == load("llama").answer(greedy([8, 8, 9], 12)).tokens


def test_only_what_was_accepted_is_found_in_the_prefix_cache(load, plain):
    request = greedy(PROMPT, 24)
    engine, _ = drafting(load, "half", request, plain, block_size=4)
    engine.answer(request)
    text = PROMPT + plain
    wanted = load("llama").answer(greedy([*text, 3], 8)).tokens
    again = engine.answer(greedy([*text, 3], 8))
    assert again.tokens == wanted
    # All but the last token of the output are computed, in whole blocks.
    cached = again.terminals[0].completion_usage.prompt_tokens_details.cached_tokens
    assert cached == (len(text) - 1) // 4 * 4


class Refusing(Alternating):
    """The grammar of a choice that leaves it with its third token."""

    def accept(self, token_id: int) -> bool:
        return self.count < 2 and super().accept(token_id)


class FirstRefuses(Alternating):
    """Of a request with two choices only the first one leaves its grammar."""

    def __init__(self) -> None:
        super().__init__()
        self.num_started = 0

    def start(self, ending_ids: list[int]) -> Alternating:
        self.num_started += 1
        return Refusing() if self.num_started == 1 else Alternating()


def test_a_choice_that_fails_takes_its_sibling_along_amid_their_drafts(load):
    request = greedy(PROMPT, 9, n=2)
    request.sampling_options.guided_decoding.CopyFrom(GUIDE)
    plain = load("llama")
    follow_guides(plain)
    tokens = plain.answer(request).tokens
    engine = load("llama", block_size=1)
    follow_guides(engine, FirstRefuses())
    draft_with(engine, "right", {(tuple(PROMPT), index): tokens[index] for index in (0, 1)})
    context, other = engine.add(request), engine.add(greedy([8, 8, 9], 12))
    engine.run()
    assert isinstance(engine.answers[context].error, StepFailed)
    assert engine.core.statistics.drafts.num_drafts > 0
    assert engine.answers[other].tokens == plain.answer(greedy([8, 8, 9], 12)).tokens
