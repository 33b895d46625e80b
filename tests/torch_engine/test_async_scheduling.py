"""The next batch is launched before the tokens of this one are read, and nobody notices.

A CPU computes at once; here it is taken for a device that does not.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from torch import Tensor

from enginewire import v1 as pb
from enginewire.server.failures import DeadlineExceeded, StepFailed
from enginewire.torch_engine.requests.params import SamplingParams
from enginewire.torch_engine.requests.scores import Beam
from enginewire.torch_engine.runner import batch
from enginewire.torch_engine.sampling.sampler import Choice
from tests.long import examples, long_but
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.scheduling.scheduling import make_request
from tests.torch_engine.tiny import Answer, greedy

PROMPT = [5, 9, 33, 7, 100, 12]
SMALL = {"num_kv_blocks": 20, "block_size": 4, "max_model_len": 70}
BIAS = [pb.LogitBias(token_id=7, bias=3.0)]
OPTIONS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "seed": 4, "top_p": 0.9},
    "penalised": {"temperature": 0.7, "seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "biased": {
        "temperature": 0.0,
        "logit_bias": BIAS,
        "bad_words_token_ids": [pb.TokenSequence(token_ids=[9])],
    },
    "worded": {"temperature": 0.0, "bad_words_token_ids": [pb.TokenSequence(token_ids=[9, 12])]},
    "scored": {"temperature": 0.0},
    "twofold": {"temperature": 0.8, "seed": 4, "n": 2},
    "best": {"temperature": 0.8, "seed": 4, "n": 1, "best_of": 3},
    "beams": {"temperature": 0.0, "n": 2, "best_of": 3, "use_beam_search": True},
}

SAID = {"scored": {"logprobs": 2, "prompt_logprobs": 1}}


def ask(kind: str, prompt: list[int], max_tokens: int, **stop: object) -> pb.PreprocessedRequest:
    return pb.PreprocessedRequest(
        token_ids=prompt,
        sampling_options=pb.SamplingOptions(**OPTIONS[kind]),
        stop_conditions=pb.StopConditions(max_tokens=max_tokens, **stop),
        output_options=pb.OutputOptions(**SAID.get(kind, {})),
    )


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """What the engines of a test do, in order: launch and read."""
    found: list[str] = []
    launch, read = batch.sample, Choice.read

    def launching(*of):
        found.append("launch")
        return launch(*of)

    def reading(choice):
        found.append("read")
        return read(choice)

    monkeypatch.setattr(batch, "sample", launching)
    monkeypatch.setattr(Choice, "read", reading)
    return found


def rounded(scores: list[pb.PromptLogprobs]) -> list[list[float]]:
    """Batches differ in their last bits."""
    return [[round(value, 3) for value in each.logprobs.token_logprobs] for each in scores]


def parts(answer: Answer) -> tuple[object, ...]:
    """All that a caller sees, but for what was in the cache, and which of two choices ended first."""
    scores = [end.prompt_logprobs for end in answer.outputs if end.HasField("prompt_logprobs")]
    ends = sorted((end.index, end.finish_reason) for end in answer.terminals)
    used = [end.completion_usage.completion_tokens for end in answer.terminals]
    return dict(answer.tokens), ends, used, len(answer.logprobs), rounded(scores), answer.error


def test_the_next_batch_is_launched_before_the_tokens_are_read(far, events, expected):
    engine = far()
    events.clear()
    assert engine.answer(greedy(PROMPT, 4)).tokens[0] == expected("llama", PROMPT, 4)
    assert events == ["launch", "launch", "read", "launch", "read", "launch", "read", "read"]


def test_without_a_far_device_or_with_the_option_off_it_is_not(load, far, events):
    for engine in (load("llama"), far(async_scheduling=False)):
        events.clear()
        engine.answer(greedy(PROMPT, 3))
        assert events == ["launch", "read"] * 3


@pytest.mark.parametrize("kind", ["penalised", "worded", "beams"])
def test_rows_that_depend_on_the_last_token_are_waited_for(kind, far, events):
    engine = far()
    events.clear()
    engine.answer(ask(kind, PROMPT, 4, ignore_eos=True))
    assert events == ["launch", "read"] * (len(events) // 2)


def test_min_tokens_counts_the_token_that_is_not_read_yet(load, far, expected):
    plain = expected("llama", PROMPT, 12)
    for min_tokens in range(1, 6):
        stop = pb.StopConditions(max_tokens=12, min_tokens=min_tokens, stop_token_ids=plain[1:4])
        request = pb.PreprocessedRequest(token_ids=PROMPT, stop_conditions=stop)
        request.sampling_options.temperature = 0.0
        assert parts(far().answer(request)) == parts(load("llama").answer(request))


@pytest.mark.parametrize("family", long_but(["mistral"], ["llama", "mistral"]))
@pytest.mark.parametrize("kind", OPTIONS)
def test_every_option_gives_the_same_in_any_company(family, kind, load, far):
    requests = [ask(kind, prompt, 9 + 3 * i) for i, prompt in enumerate(prompts((3, 22, 40)))]
    requests += [ask("greedy", prompt, 14, ignore_eos=True) for prompt in prompts((5, 31))]
    alone = load(family)
    wanted = [parts(alone.answer(request)) for request in requests]
    engine = far(family, max_num_batched_tokens=16, block_size=4)
    contexts = []
    for request in requests:
        contexts.append(engine.add(request))
        engine.step()
    engine.run()
    assert [parts(engine.answers[context]) for context in contexts] == wanted
    assert engine.num_failed_batches == 0


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_sequences_that_are_preempted_while_their_token_is_unread_equal_transformers(family, far, expected):
    engine = far(family, **SMALL)
    asked = prompts((9, 17, 20, 14))
    contexts = [engine.add(greedy(prompt, 16)) for prompt in asked]
    engine.run()
    assert engine.core.scheduler.num_preemptions > 0
    assert engine.num_failed_batches == 0
    for context, prompt in zip(contexts, asked, strict=True):
        assert engine.answers[context].tokens[0] == expected(family, prompt, 16)


@pytest.mark.parametrize("num_kv_blocks", [5, 12])
def test_texts_longer_than_the_cache_equal_transformers_behind_a_window(num_kv_blocks, far, expected):
    engine = far("mistral", num_kv_blocks=num_kv_blocks, block_size=4, max_num_batched_tokens=8)
    asked = prompts((90, 30, 61))
    for _ in range(2):
        contexts = [engine.add(greedy(prompt, 20)) for prompt in asked]
        engine.run()
        for context, prompt in zip(contexts, asked, strict=True):
            assert engine.answers[context].tokens[0] == expected("mistral", prompt, 20)


def test_choices_wait_for_the_prompt_that_the_first_one_computes(far):
    engine = far(block_size=4)
    engine.answer(greedy(PROMPT * 4, 5, n=4))
    # Each of the others computes only what does not fill a block.
    assert engine.core.statistics.num_tokens.sum == 24 + 3 * 4 + 4 * 4


def test_what_follows_an_end_is_computed_for_nobody(far, expected):
    plain = expected("llama", PROMPT, 12)
    engine = far()
    other = engine.add(greedy(PROMPT[:3], 12))
    request = greedy(PROMPT, 12)
    request.stop_conditions.CopyFrom(pb.StopConditions(max_tokens=12, stop_token_ids=[plain[3]]))
    stopped = engine.add(request)
    engine.run()
    assert engine.answers[stopped].tokens[0] == plain[:4]
    assert engine.answers[stopped].terminals[0].completion_usage.completion_tokens == 4
    assert engine.answers[other].tokens[0] == expected("llama", PROMPT[:3], 12)
    assert engine.core.counters.tokens_generated == 4 + 12


@pytest.mark.parametrize(
    "changes",
    [
        {"hands_over": True},
        {"sampling": SamplingParams(0, repetition_penalty=1.1)},
        {"sampling": SamplingParams(0, bad_words=((3,), (4, 5)))},
        {"matcher": object()},
        {"thinking": object()},
        {"beam": Beam()},
    ],
)
def test_what_needs_the_last_token_is_known(changes):
    (sequence,) = make_request(3, 5).sequences
    assert not sequence.needs_last_token
    for name, value in changes.items():
        setattr(sequence if hasattr(sequence, name) else sequence.request, name, value)
    assert sequence.needs_last_token


def test_rules_about_single_tokens_need_none():
    (sequence,) = make_request(3, 5).sequences
    sequence.request.sampling = SamplingParams(
        0, 0.5, 3, 0.5, 0.1, logit_bias=((3, 1.0),), bad_words=((4,),), allowed_token_ids=(1, 2)
    )
    assert not sequence.needs_last_token


def test_an_abort_ends_a_request_whose_batch_is_under_way(far, expected):
    engine = far()
    ended, other = engine.add(greedy(PROMPT, 50)), engine.add(greedy(PROMPT[:2], 9))
    for _ in range(3):
        engine.step()
    engine.core.live.abort(ended)
    engine.step()
    assert len(engine.answers[ended].tokens[0]) == 3
    assert engine.answers[ended].terminals[0].finish_reason == pb.FINISH_REASON_CANCELLED
    engine.run()
    assert len(engine.answers[ended].tokens[0]) == 3
    assert engine.answers[other].tokens[0] == expected("llama", PROMPT[:2], 9)


def test_blocks_of_an_aborted_request_are_taken_while_its_batch_is_under_way(far, expected):
    engine = far(num_kv_blocks=3, max_model_len=40)
    ended = engine.add(greedy(PROMPT, 30))
    for _ in range(3):
        engine.step()
    engine.core.live.abort(ended)
    assert engine.answer(greedy(PROMPT * 4, 9)).tokens[0] == expected("llama", PROMPT * 4, 9)


def test_a_deadline_passes_while_the_next_batch_is_under_way(load, far, monkeypatch):
    engine = far()
    context = engine.add(greedy(PROMPT, 50), deadline=10.0)
    monkeypatch.setattr(engine.core, "_clock", lambda: 1.0)
    engine.step()
    engine.step()
    monkeypatch.setattr(engine.core, "_clock", lambda: 11.0)
    engine.run()
    assert isinstance(engine.answers[context].error, DeadlineExceeded)
    assert len(engine.answers[context].tokens[0]) == 2


def test_an_engine_that_has_ended_everything_keeps_no_batch(far):
    engine = far()
    context = engine.add(greedy(PROMPT, 50))
    engine.step()
    assert engine.core._ahead
    engine.core.live.abort(context)
    engine.step()
    assert engine.core._ahead is None
    assert not engine.core.has_work


def test_an_exception_in_the_model_fails_only_the_request_that_causes_it(far, expected, monkeypatch):
    engine = far()
    forward = engine.core._runner.forward

    def fragile(batch, unread):
        if any(len(grant.sequence.token_ids) > 12 and grant.sequence.token_ids[0] == 66 for grant in batch):
            raise RuntimeError("out of something")
        return forward(batch, unread)

    monkeypatch.setattr(engine.core._runner, "forward", fragile)
    bad, good = engine.add(greedy([66, 3], 40)), engine.add(greedy(PROMPT, 20))
    engine.run()
    assert isinstance(engine.answers[bad].error, StepFailed)
    assert len(engine.answers[bad].tokens[0]) == 12
    assert engine.answers[good].tokens[0] == expected("llama", PROMPT, 20)


def test_what_the_device_reports_too_late_fails_the_batch_and_nothing_else(far, expected, monkeypatch):
    engine = far()
    contexts = [engine.add(greedy(PROMPT[:size], 20)) for size in (2, 6)]
    for _ in range(3):
        engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(Choice, "read", lambda _: [][0])
        engine.step()
    assert all(isinstance(engine.answers[context].error, StepFailed) for context in contexts)
    assert not engine.core.has_work
    assert engine.core.scheduler.pool.num_used == 0
    assert engine.answer(greedy(PROMPT, 5)).tokens[0] == expected("llama", PROMPT, 5)


def test_who_has_found_what_turns_out_to_be_broken_begins_again(far, expected, monkeypatch):
    prompt = PROMPT * 4
    engine = far(block_size=4, max_num_batched_tokens=24)
    table, forward = engine.core._runner.model.embedding, engine.core._runner.forward
    sound: Tensor = table[PROMPT[0]].clone()
    table[PROMPT[0]] = float("nan")

    def mended(batch, unread):
        computed = forward(batch, unread)
        table[PROMPT[0]] = sound
        return computed

    monkeypatch.setattr(engine.core._runner, "forward", mended)
    broken, finder = engine.add(greedy(prompt, 5)), engine.add(greedy(prompt, 5))
    engine.step()
    assert isinstance(engine.answers[broken].error, StepFailed)
    engine.run()
    assert engine.answers[finder].tokens[0] == expected("llama", prompt, 5)


def test_who_shares_a_prompt_with_a_broken_request_goes_on(far, expected):
    prompt = PROMPT * 4
    engine = far(block_size=4)
    sound = engine.add(greedy(prompt, 8))
    engine.step()
    engine.loaded.core._runner.model.embedding[77] = float("nan")
    broken = engine.add(greedy([*prompt, 77], 5))
    engine.run()
    assert isinstance(engine.answers[broken].error, StepFailed)
    assert engine.answers[sound].tokens[0] == expected("llama", prompt, 8)
    # The broken one had found the prompt, and nobody computed it again.
    assert engine.core.statistics.num_tokens.sum <= len(prompt) + 8 + 4 + 1


PROGRAM = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(sorted(OPTIONS)), st.integers(1, 30), st.integers(1, 12)),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
    ),
    max_size=30,
)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
)
@given(PROGRAM)
# Here the second choice ends first.
@example([("add", "twofold", 11, 1)])
def test_any_sequence_of_requests_steps_and_aborts_gives_what_each_request_gives_alone(load, far, program):
    alone = load("llama", **SMALL)
    engine = far("llama", **SMALL, max_num_batched_tokens=9)
    added: list[tuple[pb.PreprocessedRequest, object]] = []
    aborted = set()
    for action, *values in program:
        if action == "add":
            kind, length, max_tokens = values
            request = ask(kind, prompts((length,))[0], max_tokens)
            added.append((request, engine.add(request)))
        elif action == "step":
            for _ in range(values[0]):
                engine.step()
        elif added:
            context = added[values[0] % len(added)][1]
            aborted.add(context)
            engine.core.live.abort(context)
    engine.run()
    assert engine.num_failed_batches == 0
    for request, context in added:
        answer, whole = engine.answers[context], alone.answer(request)
        if context not in aborted:
            assert parts(answer) == parts(whole)
        for index, tokens in answer.tokens.items():
            assert tokens == whole.tokens[index][: len(tokens)]
