from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer

from engine_server.failures import (
    ContextExceeded,
    DeadlineExceeded,
    Draining,
    EngineDead,
    InvalidRequest,
    KvExhausted,
    NotStarted,
    StepFailed,
)
from engine_server.interface import GenerateContext, StepEngine, StepOutputs
from engine_server.mocker_engine import MockerEngine, MockerOptions
from engine_server.mocker_model import Echo, Sampler, Sampling
from engine_server.mocker_options import script_from_json
from engine_server.mocker_tokenizer import EOS, byte_tokenizer
from engine_server.validation import check_generate
from enginewire import v1 as pb
from tests.engine_server.step_recorder import Answer, Recorder

HELLO = list(b"Hello!")
LONG = {"max_tokens": 1000, "ignore_eos": True}


async def started(**options: object) -> Recorder:
    engine = MockerEngine(MockerOptions(**options))
    await engine.start(1)
    return Recorder(engine)


async def turns(count: int) -> None:
    """Let the event loop turn: the mocker takes one step in each."""
    for _ in range(count):
        await asyncio.sleep(0)


def assert_idle(recorder: Recorder) -> None:
    load = recorder.engine.load()
    assert (load.running, load.waiting, load.kv_blocks_used, load.waiting_tokens) == (0, 0, 0, 0)


async def test_it_is_a_step_engine_whose_config_validation_accepts() -> None:
    engine = MockerEngine()
    assert isinstance(engine, StepEngine)
    config = await engine.start(1)
    assert config.served_model_name == ""
    assert (config.model, config.vocab_size, list(config.eos_token_ids)) == ("mocker", 258, [EOS])
    request = pb.PreprocessedRequest(model="mocker", token_ids=HELLO)
    request.sampling_options.seed = 1
    check_generate(pb.GenerateRequest(request_id="r", request=request), config)


async def test_greedy_echoes_the_prompt_and_ends_with_eos() -> None:
    recorder = await started()
    answer = await recorder.run(token_ids=HELLO)
    choice = answer.choices[0]
    assert (choice.token_ids, choice.reason, choice.first_position) == ([*HELLO, EOS], "EOS", 0)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        6,
        7,
        13,
    )
    assert not choice.terminal.HasField("stop_match")
    assert_idle(recorder)


async def test_each_step_has_one_token_per_sequence() -> None:
    recorder = await started()
    for _ in range(3):
        recorder.submit(token_ids=HELLO)
    await recorder.idle()
    assert [len(step.token_ids) + len(step.outputs) for step in recorder.steps] == [3] * 7
    assert [step.step for step in recorder.steps] == list(range(1, 8))


@pytest.mark.parametrize(
    ("stop", "length", "reason"),
    [
        ({"max_tokens": 1}, 1, "LENGTH"),
        ({"max_tokens": 7}, 7, "EOS"),
        ({"max_tokens": 20, "ignore_eos": True}, 20, "LENGTH"),
        ({"max_tokens": 1000, "ignore_eos": True}, 1000, "LENGTH"),
        ({"min_tokens": 7}, 7, "EOS"),
        ({"min_tokens": 8}, 14, "EOS"),
        ({"stop_token_ids": [ord("l")]}, 3, "STOP"),
        ({"stop_token_ids_visible": [ord("!"), ord("o")]}, 5, "STOP"),
        ({"stop_token_ids_hidden": [ord("l")]}, 3, "EOS"),
        ({"stop_token_ids": [ord("l")], "min_tokens": 4}, 4, "STOP"),
        ({"stop_token_ids": [ord("l")], "min_tokens": 8}, 10, "STOP"),
        ({"stop_token_ids": [ord("l")], "max_tokens": 3}, 3, "STOP"),
        ({"stop_token_ids": [ord("l")], "ignore_eos": True}, 3, "STOP"),
        ({"stop_token_ids_hidden": [ord("l")], "ignore_eos": True, "max_tokens": 9}, 9, "LENGTH"),
        ({"stop_token_ids": [ord("l")], "stop_token_ids_hidden": [ord("l")]}, 3, "EOS"),
        ({"stop_token_ids": [EOS]}, 7, "EOS"),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, 7, "STOP"),
    ],
)
async def test_a_choice_ends_where_its_conditions_say(
    stop: dict[str, object], length: int, reason: str
) -> None:
    recorder = await started()
    # The echo begins again after its EOS, so that every condition is met in time.
    limits = {"max_tokens": 30, **stop}
    choice = (await recorder.run(token_ids=HELLO, stop_conditions=limits)).choices[0]
    assert (len(choice.token_ids), choice.reason) == (length, reason)
    assert choice.terminal.HasField("stop_match") == (reason == "STOP")
    if reason == "STOP":
        assert choice.terminal.stop_match.token_id == choice.token_ids[-1]


async def test_the_request_s_eos_ids_replace_the_engine_s() -> None:
    recorder = await started()
    choice = (await recorder.run(token_ids=HELLO, eos_token_ids=[ord("o")])).choices[0]
    assert (choice.token_ids[-1], choice.reason) == (ord("o"), "EOS")


async def test_a_full_context_ends_a_choice_with_length() -> None:
    recorder = await started(context_length=300)
    stop = {"ignore_eos": True}
    for limits in (stop, {**stop, "max_tokens": 2**32 - 1}):
        choice = (await recorder.run(token_ids=HELLO, stop_conditions=limits)).choices[0]
        assert (len(choice.token_ids), choice.reason) == (294, "LENGTH")
    with pytest.raises(ContextExceeded):
        recorder.submit(token_ids=[1] * 300)


async def test_a_script_answers_instead_of_the_echo() -> None:
    script = script_from_json('[{"prompt": "Hello!", "answer": [7, 8]}, {"answer": "ok"}]')
    recorder = await started(script=script)
    answer = await recorder.run(token_ids=HELLO)
    assert answer.choices[0].token_ids == [7, 8, EOS]
    other = await recorder.run(token_ids=[1])
    assert other.choices[0].token_ids == [*b"ok", EOS]


@pytest.mark.parametrize(
    "text", ["{}", "[1]", '[{"prompt": 1}]', '[{"answer": [1.5]}]', '[{"answer": [true]}]', "no"]
)
def test_a_script_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # JSON's own messages differ
        script_from_json(text)


@pytest.mark.parametrize(
    "options",
    [
        {"vocab_size": 257},
        {"max_num_batched_tokens": 256},
        {"context_length": 1},
        {"num_kv_blocks": 0},
        {"itl_ms": -1.0},
        {"fault": "step:x"},
        {"fault": "step"},
        {"script": {None: (258,)}},
        {"script": {None: ()}},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^[a-z_, ]+: "):
        MockerOptions(**options)


def sampled(recorder: Recorder, n: int = 1, **sampling: object) -> Answer:
    options = {"temperature": 1.0, "n": n, **sampling}
    return recorder.submit(token_ids=HELLO, sampling_options=options, stop_conditions=LONG)[1]


async def test_a_seed_gives_the_same_tokens_whatever_the_batch() -> None:
    recorder = await started()
    alone = sampled(recorder, seed=7)
    await recorder.idle()
    crowd = [sampled(recorder, seed=seed) for seed in (1, 7, 2)]
    await recorder.idle()
    assert crowd[1].choices[0].token_ids == alone.choices[0].token_ids
    assert crowd[0].choices[0].token_ids != alone.choices[0].token_ids


async def test_choices_draw_different_numbers() -> None:
    recorder = await started()
    answer = sampled(recorder, n=3, seed=7)
    await recorder.idle()
    assert len({tuple(choice.token_ids) for choice in answer.choices.values()}) == 3


async def test_without_a_seed_answers_differ_unless_the_engine_has_one() -> None:
    answers = []
    for seed in (None, None, 3, 3):
        recorder = await started(seed=seed)
        answers.append(sampled(recorder))
        await recorder.idle()
    first, second, third, fourth = (answer.choices[0].token_ids for answer in answers)
    assert first != second
    assert third == fourth


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0.0}])
async def test_a_distribution_cut_to_its_best_token_is_greedy(sampling: dict[str, object]) -> None:
    recorder = await started()
    cut = sampled(recorder, seed=1, **sampling)
    greedy = sampled(recorder, temperature=0.0)
    await recorder.idle()
    assert cut.choices[0].token_ids == greedy.choices[0].token_ids


def ranks(sampling: Sampling, count: int = 4096) -> Counter[int]:
    echo = Echo([65, 66, 67], 258, unrolled=count)
    tokens = Sampler(echo, sampling, 0).run(0, count)
    return Counter(echo.rank(position, token_id) for position, token_id in enumerate(tokens))


@pytest.mark.parametrize(
    ("sampling", "probabilities"),
    [
        (Sampling(temperature=1.0), [1 / 2, 1 / 4, 1 / 8]),
        (Sampling(temperature=1.0, top_k=2), [2 / 3, 1 / 3, 0]),
        (Sampling(temperature=1.0, top_p=0.74), [2 / 3, 1 / 3, 0]),
        (Sampling(temperature=1.0, top_k=3, top_p=0.84), [2 / 3, 1 / 3, 0]),
        (Sampling(temperature=1.0, min_p=0.3), [2 / 3, 1 / 3, 0]),
        (Sampling(temperature=0.5), [3 / 4, 3 / 16, 3 / 64]),
        (Sampling(temperature=100.0, top_k=2), [0.502, 0.498, 0]),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(sampling: Sampling, probabilities: list[float]) -> None:
    found = ranks(sampling)
    for rank, probability in enumerate(probabilities, 1):
        # Four standard deviations of 4096 draws, and exactly never where the probability is 0.
        allowed = 4 * math.sqrt(probability * (1 - probability) / 4096)
        assert abs(found[rank] / 4096 - probability) <= allowed


@given(
    st.floats(0.01, 100),
    st.floats(0, 1, exclude_min=True),
    st.integers(0, 300),
    st.floats(0, 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 1000),
)
def test_tokens_do_not_depend_on_how_they_are_asked_for(
    temperature: float, top_p: float, top_k: int, min_p: float, seed: int, begin: int
) -> None:
    echo = Echo([1, 2, 3, 4, 5], 258, unrolled=64)
    sampler = Sampler(echo, Sampling(temperature, top_p, top_k, min_p, seed), 3)
    whole = sampler.run(begin, 40)
    assert whole == [token_id for i in range(40) for token_id in sampler.run(begin + i, 1)]
    assert all(0 <= token_id < 258 for token_id in whole)


async def test_log_probabilities_describe_the_distribution() -> None:
    recorder = await started()
    _, answer = recorder.submit(
        token_ids=HELLO,
        sampling_options={"temperature": 1.0, "seed": 5},
        stop_conditions=LONG,
        output_options={"logprobs": 5, "logprob_token_ids": [0, 9]},
    )
    await recorder.idle()
    total = 0.0
    for output in answer.choices[0].outputs:
        row = output.logprobs
        assert (len(row.token_logprobs), row.top_n, len(set(row.top_token_ids))) == (1, 5, 5)
        assert all(better > worse for better, worse in pairwise(row.top_logprobs))
        assert sum(map(math.exp, row.top_logprobs)) == pytest.approx(1 - 2**-5)
        shown = dict(zip(row.top_token_ids, row.top_logprobs, strict=True))
        assert shown.get(output.token_ids[0], row.token_logprobs[0]) == row.token_logprobs[0]
        assert len(row.selected_logprobs) == 2
        total += row.token_logprobs[0]
        assert output.cum_log_probs == pytest.approx(total, rel=1e-5)
    assert len(answer.choices[0].outputs) == 1000


async def test_greedy_tokens_are_the_first_alternatives() -> None:
    recorder = await started()
    answer = await recorder.run(token_ids=HELLO, output_options={"logprobs": 1})
    for output in answer.choices[0].outputs:
        assert list(output.logprobs.top_token_ids) == list(output.token_ids)
        assert list(output.logprobs.token_ranks) == [1]


async def test_without_logprobs_there_are_none() -> None:
    recorder = await started()
    answer = await recorder.run(token_ids=HELLO)
    assert not any(output.HasField("logprobs") for output in answer.choices[0].outputs)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 600),
    st.sampled_from([{}, {"ignore_eos": True}, {"stop_token_ids": [ord("o")], "min_tokens": 300}]),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
)
def test_a_resumed_choice_goes_on_exactly_where_it_was(
    cut: int, stop: dict[str, object], temperature: float, logprobs: bool
) -> None:
    async def scenario() -> None:
        recorder = await started()
        request = pb.PreprocessedRequest(token_ids=HELLO)
        request.stop_conditions.CopyFrom(pb.StopConditions(**{"max_tokens": 500, **stop}))
        request.sampling_options.CopyFrom(pb.SamplingOptions(temperature=temperature, seed=11))
        if logprobs:
            request.output_options.logprobs = 0
        whole = (await recorder.run(request)).choices[0]
        delivered = whole.token_ids[:cut]
        request.resume.choices.add(generated_token_ids=delivered)
        answer = await recorder.run(request)
        rest = answer.choices[0]
        assert rest.first_position == len(delivered)
        assert delivered + rest.token_ids == whole.token_ids
        assert (rest.reason, rest.terminal.stop_match) == (whole.reason, whole.terminal.stop_match)
        assert answer.usage.completion_tokens == len(whole.token_ids)
        assert answer.usage.prompt_tokens == len(HELLO)
        assert_idle(recorder)

    asyncio.run(scenario())


async def test_a_finished_choice_is_not_generated_again_but_counted() -> None:
    recorder = await started()
    resume = pb.Resume(choices=[{"index": 0, "generated_token_ids": [1, 2], "finished": True}])
    answer = await recorder.run(token_ids=HELLO, sampling_options={"n": 2}, resume=resume)
    assert set(answer.choices) == {1}
    assert answer.usage.completion_tokens == 2 + 7
    resume.choices.add(index=1, finished=True)
    with pytest.raises(InvalidRequest):
        recorder.submit(token_ids=HELLO, sampling_options={"n": 2}, resume=resume)


async def test_every_choice_has_one_terminal_and_the_last_one_the_usage() -> None:
    recorder = await started()
    answer = sampled(recorder, n=5, seed=3)
    await recorder.idle()
    assert sorted(answer.choices) == [0, 1, 2, 3, 4]
    assert all(choice.terminal is not None for choice in answer.choices.values())
    assert answer.usage.completion_tokens == sum(len(c.token_ids) for c in answer.choices.values())
    assert answer.usage.prompt_tokens == len(HELLO)


async def test_a_probe_generates_one_token_and_leaves_nothing_behind() -> None:
    recorder = await started()
    answer = await recorder.run(token_ids=[1], is_probe=True)
    assert (len(answer.choices[0].token_ids), answer.choices[0].reason) == (1, "LENGTH")
    assert recorder.engine.load().requests_finished == 0
    assert_idle(recorder)


async def test_blocks_are_held_while_a_request_runs_and_freed_with_each_choice() -> None:
    recorder = await started(block_size=16, num_kv_blocks=100)
    stop = {"max_tokens": 26, "ignore_eos": True}
    _, answer = recorder.submit(token_ids=HELLO, stop_conditions=stop, sampling_options={"n": 3})
    assert (recorder.engine.load().waiting, recorder.engine.load().waiting_tokens) == (1, 6)
    await turns(2)
    load = recorder.engine.load()
    assert (load.running, load.waiting, load.kv_blocks_used) == (3, 0, 6)
    assert load.kv_blocks_total == 100
    await recorder.idle()
    assert answer.usage.completion_tokens == 78
    assert_idle(recorder)
    load = recorder.engine.load()
    assert (load.requests_finished, load.tokens_generated, load.step) == (1, 78, 26)


@pytest.mark.parametrize("limits", [{"max_num_seqs": 2}, {"num_kv_blocks": 4, "block_size": 16}])
async def test_requests_wait_for_a_place_and_start_in_order(limits: dict[str, int]) -> None:
    recorder = await started(**limits)
    stop = {"max_tokens": 26, "ignore_eos": True}
    answers = [recorder.submit(token_ids=HELLO, stop_conditions=stop)[1] for _ in range(5)]
    await turns(3)
    load = recorder.engine.load()
    assert (load.running, load.waiting, load.waiting_tokens) == (2, 3, 18)
    await recorder.idle()
    assert [answer.usage.completion_tokens for answer in answers] == [26] * 5
    assert [len(step.outputs) for step in recorder.steps if step.outputs] == [2, 2, 1]
    assert_idle(recorder)


async def test_what_can_never_fit_is_refused_and_what_names_no_length_takes_what_there_is() -> None:
    recorder = await started(num_kv_blocks=4, block_size=16)
    with pytest.raises(KvExhausted):
        recorder.submit(token_ids=HELLO, stop_conditions={"max_tokens": 59})
    with pytest.raises(KvExhausted):
        recorder.submit(token_ids=[1] * 64)
    with pytest.raises(KvExhausted):
        recorder.submit(token_ids=HELLO, sampling_options={"n": 5}, stop_conditions={"max_tokens": 1})
    assert_idle(recorder)
    answer = await recorder.run(token_ids=HELLO, stop_conditions={"ignore_eos": True})
    assert len(answer.choices[0].token_ids) == 58


async def test_a_long_prompt_is_computed_in_chunks_beside_running_requests() -> None:
    recorder = await started(max_num_seqs=2, max_num_batched_tokens=33)
    _, short = recorder.submit(token_ids=[1], stop_conditions=LONG)
    await turns(2)
    generated = len(short.choices[0].token_ids)
    _, long = recorder.submit(token_ids=[2] * 128, stop_conditions={"max_tokens": 1})
    while not long.choices[0].token_ids:
        await turns(1)
    assert len(short.choices[0].token_ids) - generated == 128 // 32


async def test_an_abort_ends_running_and_waiting_requests_within_a_step() -> None:
    recorder = await started(max_num_seqs=2, itl_ms=60_000.0)
    stop = {"stop_conditions": LONG}
    running, answer = recorder.submit(token_ids=HELLO, sampling_options={"n": 2}, **stop)
    waiting, queued = recorder.submit(token_ids=HELLO, **stop)
    await turns(3)
    for context in (waiting, running, running):
        context.cancel("test")
        await recorder.engine.abort(context)
    # Nothing waits for the minute between two tokens.
    await turns(2)
    assert [choice.reason for choice in answer.choices.values()] == ["CANCELLED"] * 2
    assert answer.usage.completion_tokens == 2
    assert (queued.choices[0].reason, queued.choices[0].token_ids) == ("CANCELLED", [])
    assert (queued.usage.prompt_tokens, queued.usage.completion_tokens) == (6, 0)
    assert_idle(recorder)
    await recorder.engine.abort(running)


async def test_deadlines_end_running_and_waiting_requests() -> None:
    recorder = await started(max_num_seqs=1, itl_ms=60_000.0)
    deadline = time.monotonic() + 0.05
    answers = [recorder.submit(token_ids=HELLO, deadline=deadline)[1] for _ in range(2)]
    _, patient = recorder.submit(token_ids=HELLO)
    async with asyncio.timeout(5):
        while not all(answer.failure for answer in answers):
            await recorder.next_step()
    assert 0.0 <= time.monotonic() - deadline < 1.0
    assert all(isinstance(answer.failure, DeadlineExceeded) for answer in answers)
    assert patient.failure is None
    await recorder.engine.cleanup()
    assert_idle(recorder)


async def test_a_drain_hands_back_what_waits_and_finishes_what_runs() -> None:
    recorder = await started(max_num_seqs=1)
    _, running = recorder.submit(token_ids=HELLO)
    _, waiting = recorder.submit(token_ids=HELLO)
    await turns(2)
    await recorder.engine.drain()
    assert isinstance(waiting.failure, Draining)
    await recorder.idle()
    assert running.choices[0].reason == "EOS"
    assert_idle(recorder)


async def test_cleanup_cancels_what_lives_is_idempotent_and_final() -> None:
    recorder = await started(max_num_seqs=1)
    _, running = recorder.submit(token_ids=HELLO, stop_conditions=LONG)
    _, waiting = recorder.submit(token_ids=HELLO)
    await turns(3)
    await recorder.engine.cleanup()
    assert (running.choices[0].reason, waiting.choices[0].reason) == ("CANCELLED", "CANCELLED")
    assert_idle(recorder)
    await recorder.engine.cleanup()
    with pytest.raises(EngineDead):
        recorder.submit(token_ids=HELLO)
    with pytest.raises(EngineDead):
        await recorder.engine.start(1)


async def test_cleanup_is_safe_without_a_start_and_nothing_works_before_it() -> None:
    recorder = Recorder(MockerEngine())
    with pytest.raises(NotStarted):
        recorder.submit(token_ids=HELLO)
    await recorder.engine.cleanup()


async def test_a_step_fault_fails_what_runs_and_nothing_else() -> None:
    recorder = await started(fault="step:3", max_num_seqs=2)
    answers = [recorder.submit(token_ids=HELLO)[1] for _ in range(3)]
    await recorder.idle()
    assert [type(answer.failure) for answer in answers] == [StepFailed, StepFailed, type(None)]
    assert [len(answer.choices[0].token_ids) for answer in answers] == [2, 2, 7]
    assert_idle(recorder)


async def test_a_forward_fault_fails_one_request() -> None:
    recorder = await started(fault="forward:poison")
    _, poison = recorder.submit(token_ids=HELLO, request_id="poison")
    _, neighbour = recorder.submit(token_ids=HELLO, request_id="neighbour")
    await recorder.idle()
    assert isinstance(poison.failure, StepFailed)
    assert neighbour.choices[0].reason == "EOS"


async def test_a_stalled_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = await started(fault="stall:3")
    _, answer = recorder.submit(token_ids=HELLO)
    await turns(10)
    assert len(answer.choices[0].token_ids) == 2
    assert recorder.engine.stalled_for() == 0.0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 30.0)
    assert 28.0 < recorder.engine.stalled_for() < 31.0


async def test_a_step_that_raises_shows_as_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    recorder = await started()
    recorder.engine.set_step_listener(lambda outputs: recorder.answers[GenerateContext("unknown")])
    recorder.submit(token_ids=HELLO)
    await turns(5)
    assert [type(error) for error in errors] == [KeyError]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 30.0)
    assert recorder.engine.stalled_for() > 28.0


async def test_an_abort_out_of_the_listener_takes_effect_in_the_next_step() -> None:
    recorder = await started(itl_ms=60_000.0)
    context, answer = recorder.submit(token_ids=HELLO)

    def record_and_abort(outputs: StepOutputs) -> None:
        recorder.record(outputs)
        abort = recorder.engine.abort(context)
        with pytest.raises(StopIteration):
            abort.send(None)

    recorder.engine.set_step_listener(record_and_abort)
    await turns(4)
    assert answer.choices[0].reason == "CANCELLED"


async def test_a_healthy_engine_never_says_it_stalls() -> None:
    recorder = await started(itl_ms=60_000.0)
    recorder.submit(token_ids=HELLO)
    await turns(5)
    assert recorder.engine.stalled_for() == 0.0
    await recorder.engine.cleanup()
    assert recorder.engine.stalled_for() == 0.0


async def test_tokens_come_at_the_pace_that_was_asked_for() -> None:
    recorder = await started(ttft_ms=60.0, itl_ms=10.0)
    begin = time.monotonic()
    recorder.submit(token_ids=HELLO)
    await recorder.next_step()
    first = time.monotonic()
    await recorder.idle()
    assert first - begin >= 0.06
    assert time.monotonic() - first >= 6 * 0.01 - 0.005


async def test_the_event_loop_turns_while_tokens_come_as_fast_as_possible() -> None:
    recorder = await started()
    recorder.submit(token_ids=HELLO, stop_conditions=LONG)
    await turns(10)
    assert recorder.engine.load().step <= 10


async def test_generate_gives_the_tokens_of_submit() -> None:
    recorder = await started()
    request = pb.PreprocessedRequest(token_ids=HELLO, sampling_options={"n": 2})
    outputs = [output async for output in recorder.engine.generate(request, GenerateContext("g"))]
    assert [list(o.token_ids) for o in outputs if o.index == 1] == [[t] for t in [*HELLO, EOS]]
    assert sum(o.HasField("completion_usage") for o in outputs) == 1
    assert recorder.steps == []
    assert_idle(recorder)


async def test_generate_and_submit_work_side_by_side() -> None:
    recorder = await started()
    _, answer = recorder.submit(token_ids=HELLO)
    request = pb.PreprocessedRequest(token_ids=[9])
    outputs = [output async for output in recorder.engine.generate(request, GenerateContext("g"))]
    await recorder.idle()
    assert [list(output.token_ids) for output in outputs] == [[9], [EOS]]
    assert answer.choices[0].token_ids == [*HELLO, EOS]


async def test_closing_a_generate_frees_its_request() -> None:
    engine = MockerEngine(MockerOptions(itl_ms=60_000.0))
    await engine.start(1)
    stream = engine.generate(pb.PreprocessedRequest(token_ids=HELLO), GenerateContext("g"))
    await anext(stream)
    assert engine.load().running == 1
    await stream.aclose()
    await turns(2)
    assert (engine.load().running, engine.load().kv_blocks_used) == (0, 0)


async def test_cancelling_the_context_of_a_generate_ends_it_with_cancelled() -> None:
    engine = MockerEngine(MockerOptions(itl_ms=60_000.0))
    await engine.start(1)
    context = GenerateContext("g")
    stream = engine.generate(pb.PreprocessedRequest(token_ids=HELLO), context)
    await anext(stream)
    context.cancel("test")
    rest = [output async for output in stream]
    assert [output.finish_reason for output in rest] == [pb.FINISH_REASON_CANCELLED]
    assert rest[0].completion_usage.completion_tokens == 1


async def test_a_failure_is_raised_out_of_generate() -> None:
    engine = MockerEngine(MockerOptions(fault="step:2"))
    await engine.start(1)
    with pytest.raises(StepFailed):
        async for _ in engine.generate(pb.PreprocessedRequest(token_ids=HELLO), GenerateContext("g")):
            pass


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 40), st.integers(1, 60), st.integers(1, 3)),
        st.tuples(st.just("late"), st.integers(1, 40), st.integers(1, 60), st.integers(1, 3)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 10), st.just(0), st.just(0)),
        st.tuples(st.just("drain"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.integers(1, 6), st.integers(2, 20), st.booleans())
def test_whatever_happens_every_request_ends_once_and_nothing_is_left(
    actions: list[tuple[str, int, int, int]], max_num_seqs: int, num_kv_blocks: int, cleanup: bool
) -> None:
    async def scenario() -> None:
        recorder = await started(
            max_num_seqs=max_num_seqs,
            num_kv_blocks=num_kv_blocks,
            max_num_batched_tokens=16,
            context_length=64,
        )
        contexts = []
        for action, first, second, third in actions:
            if action in ("submit", "late"):
                n = min(third, max_num_seqs)
                deadline = time.monotonic() if action == "late" else None
                stop = {"max_tokens": second, "ignore_eos": True}
                try:
                    context, _ = recorder.submit(
                        token_ids=[5] * first,
                        stop_conditions=stop,
                        sampling_options={"n": n},
                        deadline=deadline,
                    )
                except KvExhausted:
                    continue
                contexts.append((context, n))
            elif action == "abort" and contexts:
                await recorder.engine.abort(contexts[first % len(contexts)][0])
            elif action == "step":
                await turns(first)
            elif action == "drain":
                await recorder.engine.drain()
            load = recorder.engine.load()
            assert load.running <= max_num_seqs
            assert load.kv_blocks_used <= num_kv_blocks
        if cleanup:
            await recorder.engine.cleanup()
        await recorder.idle()
        for context, n in contexts:
            answer = recorder.answers[context]
            ended = [choice for choice in answer.choices.values() if choice.terminal is not None]
            assert answer.failure is not None or len(ended) == n
            if answer.failure is None:
                assert answer.usage.completion_tokens == sum(len(c.token_ids) for c in ended)
        assert_idle(recorder)
        assert recorder.engine.load().requests_finished == len(contexts)

    asyncio.run(scenario())


@given(st.text())
def test_the_tokenizer_knows_every_text(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


def test_the_tokenizer_hides_its_special_tokens() -> None:
    assert TOKENIZER.token_to_id("<|eos|>") == EOS
    assert TOKENIZER.decode([*b"hi", EOS]) == "hi"
    assert TOKENIZER.get_vocab_size() == MockerOptions().vocab_size


TOKENIZER = Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode())
