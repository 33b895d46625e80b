from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings, strategies as st

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext, StepEngine, StepOutputs
from enginewire.server.engines.mocker.engine import MockerEngine, MockerOptions
from enginewire.server.engines.mocker.options import script_from_json
from enginewire.server.engines.mocker.tokenizer import EOS
from enginewire.server.failures import (
    ContextExceeded,
    DeadlineExceeded,
    Draining,
    EngineDead,
    KvExhausted,
    NotStarted,
    StepFailed,
)
from enginewire.server.validation.generate import check_generate
from tests.long import examples
from tests.patience import PATIENCE_SECONDS
from tests.server.engines.mocker.mockers import HELLO, LONG, assert_idle, started, turns
from tests.server.step_recorder import Recorder


async def test_it_is_a_step_engine_whose_config_validation_accepts() -> None:
    engine = MockerEngine()
    assert isinstance(engine, StepEngine)
    config = await engine.start(1)
    assert config.served_model_name == ""
    assert (config.model, config.vocab_size, list(config.eos_token_ids)) == ("mocker", 258, [EOS])
    request = pb.PreprocessedRequest(model="mocker", token_ids=HELLO)
    request.sampling_options.seed = 1
    check_generate(pb.GenerateRequest(request_id="r", request=request), config)


async def test_each_step_has_one_token_per_sequence() -> None:
    recorder = await started()
    for _ in range(3):
        recorder.submit(token_ids=HELLO)
    await recorder.idle()
    assert [len(step.token_ids) + len(step.outputs) for step in recorder.steps] == [3] * 7
    assert [step.step for step in recorder.steps] == list(range(1, 8))


async def test_a_script_answers_instead_of_the_echo() -> None:
    script = script_from_json('[{"prompt": "Hello!", "answer": [7, 8]}, {"answer": "ok"}]')
    recorder = await started(script=script)
    answer = await recorder.run(token_ids=HELLO)
    assert answer.choices[0].token_ids == [7, 8, EOS]
    other = await recorder.run(token_ids=[1])
    assert other.choices[0].token_ids == [*b"ok", EOS]


async def test_a_probe_generates_one_token_and_leaves_nothing_behind() -> None:
    recorder = await started()
    answer = await recorder.run(token_ids=[1], is_probe=True)
    assert (len(answer.choices[0].token_ids), answer.choices[0].reason) == (1, "LENGTH")
    assert recorder.engine.load().requests_finished == 1
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
    assert MockerOptions(num_kv_blocks=4, block_size=16).window == 64
    with pytest.raises(ContextExceeded):
        recorder.submit(token_ids=[1] * 64)
    with pytest.raises(KvExhausted):
        recorder.submit(token_ids=HELLO, sampling_options={"n": 5}, stop_conditions={"max_tokens": 1})
    assert_idle(recorder)
    for named in ({}, {"max_tokens": 59}):
        answer = await recorder.run(token_ids=HELLO, stop_conditions={"ignore_eos": True, **named})
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
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not all(answer.failure for answer in answers):
            await recorder.next_step()
    assert time.monotonic() >= deadline
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


@settings(max_examples=examples(150), deadline=None)
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
                except (KvExhausted, ContextExceeded):
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
