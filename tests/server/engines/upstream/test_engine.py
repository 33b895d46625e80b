"""A server in front of a bare engine: what the engine gets, and what becomes of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server.lifecycle import DrainPlan
from enginewire.version import __version__
from tests.server.engines.upstream.conftest import Front
from tests.server.engines.upstream.raw import BareEngine, Odd, example
from tests.server.serving import Serving, abort_frame, ask, collect, detail_of, submit, until_true

SLOTS = 8
LONG = 4000
MARKED = b"\x07hello"


def words_of(serving: Serving, requests: int, **given: object) -> list[asyncio.Task]:
    return [asyncio.create_task(serving.generate(ask(f"r{i}", **given))) for i in range(requests)]


async def test_the_engine_s_tokens_come_with_usage_of_the_server(odd: Odd, front: Front):
    serving = await front()
    answer = await serving.generate(ask(max_tokens=12))
    model, tokens = example(), list(b"hello")
    for _ in range(12):
        tokens.append(model.next_token(tokens))
    assert answer.tokens() == tokens[5:]
    assert answer.finishes() == {0: pb.FINISH_REASON_LENGTH}
    assert answer.usage() == (5, 12)


async def two_choices(self: object, generate: pb.GenerateRequest, call: object):
    """Three tokens for each of two choices, one after the other; what `resume` brings is among them."""
    begun = {each.index: len(each.generated_token_ids) for each in generate.request.resume.choices}
    for index in range(2):
        for position in range(begun.get(index, 0), 3):
            output = pb.LLMEngineOutput(index=index, first_output_position=position, token_ids=[position + 3])
            if position == 2:
                output.finish_reason = pb.FINISH_REASON_LENGTH
            yield pb.GenerateResponse(output=output, request_id=generate.request_id)


async def a_note_and_a_token(self: object, generate: pb.GenerateRequest, call: object):
    note = pb.EngineEvent(event="note", comment=["hi"])
    yield pb.GenerateResponse(engine_event=note, request_id=generate.request_id)
    output = pb.LLMEngineOutput(token_ids=[3], finish_reason=pb.FINISH_REASON_LENGTH)
    yield pb.GenerateResponse(output=output, request_id=generate.request_id)


async def test_what_the_engine_says_beside_its_tokens_is_passed_on(
    odd: Odd, front: Front, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(BareEngine, "Generate", a_note_and_a_token)
    odd.info.config.capabilities.annotations.append("note")
    request = ask(max_tokens=1)
    request.request.annotations.append("note:hi")
    answer = await (await front()).generate(request)
    assert [(before, event.event, list(event.comment)) for before, event in answer.events] == [
        (0, "note", ["hi"])
    ]
    assert answer.usage() == (5, 1)


@pytest.mark.parametrize("resumed", [[], [3]], ids=["from the beginning", "behind a token"])
async def test_usage_counts_all_choices_and_comes_once(
    odd: Odd, front: Front, monkeypatch: pytest.MonkeyPatch, resumed: list[int]
):
    monkeypatch.setattr(BareEngine, "Generate", two_choices)
    odd.info.config.capabilities.MergeFrom(pb.Capabilities(multiple_choices=True, resume=True))
    serving = await front()
    request = ask(max_tokens=3)
    request.request.sampling_options.n = 2
    if resumed:
        request.request.resume.choices.add(index=0, generated_token_ids=resumed)
        request.request.resume.choices.add(index=1)
    answer = await serving.generate(request)
    assert answer.finishes() == dict.fromkeys(range(2), pb.FINISH_REASON_LENGTH)
    assert answer.usage() == (5, 6)


async def test_a_multiplexed_stream_has_the_same_tokens(odd: Odd, front: Front):
    serving = await front()
    alone = await serving.generate(ask(max_tokens=20))
    together = await serving.multiplexed(submit(i, ask(f"m{i}", max_tokens=20)) for i in range(3))
    assert [answer.tokens() for answer in together.values()] == 3 * [alone.tokens()]
    assert together[2].usage() == (5, 20)


@pytest.mark.parametrize(
    ("own", "shown"), [(("raw", "7"), ("raw", "7")), (("", ""), ("enginewire-upstream", __version__))]
)
async def test_the_engine_is_called_what_it_calls_itself(
    odd: Odd, front: Front, own: tuple[str, str], shown: tuple[str, str]
):
    odd.info.engine_name, odd.info.engine_version = own
    info = await (await front()).discovery.GetEngineInfo(pb.GetEngineInfoRequest())
    assert (info.engine_name, info.engine_version) == shown


async def test_the_engine_may_rely_on_a_complete_request(odd: Odd, front: Front):
    odd.info.config.eos_token_ids.append(999)
    serving = await front()
    request = ask(max_tokens=1)
    request.request.ClearField("stop_conditions")
    request.request.is_probe = True
    await serving.generate(request)
    [endless] = words_of(serving, 1, max_tokens=2**32 - 1)
    await until_true(lambda: len(odd.seen) == 2)
    await serving.engine.Abort(pb.AbortRequest(all=True))
    await endless
    probe, large = odd.seen
    assert probe.request_id == "r1:1"
    assert probe.request.stop_conditions.max_tokens == 1
    assert list(probe.request.eos_token_ids) == [999]
    assert (probe.request.sampling_options.temperature, probe.request.sampling_options.top_p) == (1.0, 1.0)
    assert large.request.stop_conditions.max_tokens == 4096 - len(b"hello")


async def test_what_a_complete_request_says_stays(odd: Odd, front: Front):
    odd.info.config.eos_token_ids.append(999)
    sampling = pb.SamplingOptions(temperature=0.5, top_p=0.25, top_k=3)
    request = ask(max_tokens=2, sampling_options=sampling, eos_token_ids=[7])
    await (await front()).generate(request)
    [seen] = odd.seen
    assert seen.request.sampling_options == sampling
    assert list(seen.request.eos_token_ids) == [7]
    assert seen.request.stop_conditions.max_tokens == 2


async def test_an_id_is_never_used_twice_and_fits_the_contract(odd: Odd, front: Front):
    serving = await front()
    for _ in range(2):
        await serving.generate(ask("x" * 128))
    assert len({each.request_id for each in odd.seen}) == 2
    assert all(len(each.request_id) <= 128 for each in odd.seen)


async def test_the_queue_is_here(odd: Odd, front: Front):
    serving = await front()
    answers = words_of(serving, 3 * SLOTS, max_tokens=30)
    load = await serving.until(lambda load: load.waiting == 2 * SLOTS and load.tokens_generated > 0)
    assert (load.running, load.waiting_tokens) == (SLOTS, 2 * SLOTS * 5)
    assert [(await answer).usage() for answer in answers] == 3 * SLOTS * [(5, 30)]
    assert odd.most == SLOTS
    idle = await serving.until_idle()
    assert (idle.waiting_tokens, idle.tokens_generated) == (0, 3 * SLOTS * 30)


async def test_an_abort_reaches_the_engine(odd: Odd, front: Front):
    serving = await front()
    [answer] = words_of(serving, 1, max_tokens=LONG)
    await until_true(lambda: bool(odd.live))
    await serving.engine.Abort(pb.AbortRequest(request_ids=["r0"]))
    assert (await answer).finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert odd.aborted == ["r0:1"]
    await until_true(lambda: not odd.live)
    assert odd.cancelled == [], "the engine had ended it by itself"


async def test_an_engine_that_ignores_aborts_has_its_call_cancelled(odd: Odd, front: Front):
    odd.is_deaf = True
    serving = await front()
    call = serving.engine.GenerateMultiplexed()
    await call.write(submit(1, ask(max_tokens=LONG)))
    await until_true(lambda: bool(odd.live))
    await call.write(abort_frame(1))
    await call.done_writing()
    answers = await collect(call)
    assert answers[1].finishes() == {0: pb.FINISH_REASON_CANCELLED}
    await until_true(lambda: odd.cancelled == ["r1:1"])


async def test_an_abort_that_fails_at_the_engine_ends_the_request_here(odd: Odd, front: Front):
    serving = await front()
    [answer] = words_of(serving, 1, max_tokens=LONG)
    await until_true(lambda: bool(odd.live))
    odd.has_bug = True
    await serving.engine.Abort(pb.AbortRequest(request_ids=["r0"]))
    assert (await answer).finishes() == {0: pb.FINISH_REASON_CANCELLED}
    await until_true(lambda: odd.cancelled == ["r0:1"])


async def test_what_waits_is_aborted_without_the_engine(odd: Odd, front: Front):
    serving = await front()
    running = words_of(serving, SLOTS, max_tokens=LONG)
    await serving.until(lambda load: load.running == SLOTS)
    waiting = asyncio.create_task(serving.generate(ask("late", max_tokens=LONG)))
    await serving.until(lambda load: load.waiting == 1)
    await serving.engine.Abort(pb.AbortRequest(request_ids=["late"]))
    assert (await waiting).finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert len(odd.seen) == SLOTS
    await serving.engine.Abort(pb.AbortRequest(all=True))
    await asyncio.gather(*running)
    assert (await serving.until_idle()).requests_finished == SLOTS + 1


async def test_what_is_aborted_in_its_own_frame_ends(odd: Odd, front: Front):
    """Before anything was done for it, beside one that runs."""
    serving = await front()
    call = serving.engine.GenerateMultiplexed()
    await call.write(submit(1, ask(max_tokens=LONG)))
    await until_true(lambda: bool(odd.live))
    frame = submit(2, ask("other", max_tokens=LONG))
    frame.abort.handles.extend((2, 1))
    await call.write(frame)
    await call.done_writing()
    answers = await collect(call)
    assert [answers[handle].finishes() for handle in (1, 2)] == 2 * [{0: pb.FINISH_REASON_CANCELLED}]


async def test_a_deadline_ends_the_call(odd: Odd, front: Front):
    serving = await front()
    answer = await serving.multiplexed(
        [pb.GenerateMultiplexedRequest(submits=[timed(ask(max_tokens=LONG), 0.3)])]
    )
    assert answer[0].failure.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED
    await until_true(lambda: not odd.live)


def timed(request: pb.GenerateRequest, seconds: float) -> pb.Submit:
    made = pb.Submit(generate=request)
    made.timeout.FromMilliseconds(round(seconds * 1000))
    return made


async def test_a_drain_hands_back_what_waits_and_lets_the_rest_finish(odd: Odd, front: Front):
    serving = await front()
    answers = words_of(serving, SLOTS + 2, max_tokens=200)
    await serving.until(lambda load: load.waiting == 2)
    progress = [each async for each in serving.server.lifecycle.drain(DrainPlan(20.0, 0.0))]
    assert progress[-1].state == pb.DRAIN_STATE_DRAINED
    ends = [(await answer).failure for answer in answers]
    assert sum(end is None for end in ends) == SLOTS
    assert {end.reason for end in ends if end} == {pb.ERROR_REASON_DRAINING}


async def test_blocks_are_those_that_the_engine_reports(odd: Odd, front: Front):
    odd.info.config.kv_cache_block_size, odd.info.config.total_kv_blocks = 16, 100
    odd.load.kv_blocks_used = 40
    serving = await front()
    [answer] = words_of(serving, 1, max_tokens=LONG)
    load = await serving.until(lambda load: load.kv_blocks_used == 40)
    assert load.kv_blocks_total == 100
    odd.load.kv_blocks_used = 0
    await serving.engine.Abort(pb.AbortRequest(all=True))
    await serving.until_idle()
    await answer


async def test_after_a_clean_up_the_engine_s_blocks_are_not_the_server_s(odd: Odd, front: Front):
    odd.info.config.kv_cache_block_size, odd.info.config.total_kv_blocks = 16, 100
    odd.load.kv_blocks_used, odd.load.kv_blocks_cached = 40, 2
    serving = await front()
    await serving.until(lambda load: load.kv_blocks_used == 40)
    await serving.engine.Cleanup(pb.CleanupRequest())
    load = await serving.load()
    assert (load.kv_blocks_used, load.kv_blocks_cached) == (0, 0)


Lie = Callable[[int, pb.GenerateResponse], "pb.GenerateResponse | None"]


def beyond_the_vocabulary(number: int, response: pb.GenerateResponse) -> pb.GenerateResponse:
    if number == 2:
        response.output.token_ids[0] = 1000
    return response


def no_terminal(number: int, response: pb.GenerateResponse) -> pb.GenerateResponse | None:
    return None if response.output.finish_reason else response


def too_many_tokens(number: int, response: pb.GenerateResponse) -> pb.GenerateResponse:
    response.output.ClearField("finish_reason")
    if number == 7:
        response.output.token_ids.append(1)
    return response


def another_choice(number: int, response: pb.GenerateResponse) -> pb.GenerateResponse:
    response.output.index = 1
    return response


def another_id(number: int, response: pb.GenerateResponse) -> pb.GenerateResponse:
    response.request_id = "somebody"
    return response


def wrong_usage(number: int, response: pb.GenerateResponse) -> pb.GenerateResponse:
    if response.output.finish_reason:
        response.output.completion_usage.completion_tokens = 1000
    return response


LIES = [beyond_the_vocabulary, no_terminal, too_many_tokens, another_choice, another_id, wrong_usage]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
async def test_what_breaks_the_contract_ends_its_request_alone(lie: Lie, odd: Odd, front: Front, caplog):
    odd.change = lie
    serving = await front()
    wronged = asyncio.create_task(serving.generate(ask("wronged", prompt=MARKED)))
    others = words_of(serving, 3, max_tokens=40)
    failure = (await wronged).failure
    assert failure.reason == pb.ERROR_REASON_INTERNAL
    assert failure.metadata["error_id"] in caplog.text
    assert [(await other).usage() for other in others] == 3 * [(5, 40)]
    await serving.until_idle()
    await until_true(lambda: not odd.live)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_REASON_INVALID_REQUEST),
        (grpc.StatusCode.INTERNAL, pb.ERROR_REASON_INTERNAL),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_REASON_INTERNAL),
        (grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_ENGINE_DEAD),
        (grpc.StatusCode.CANCELLED, pb.ERROR_REASON_ENGINE_DEAD),
    ],
)
async def test_a_status_of_the_engine_becomes_one_of_the_contract_without_its_words(
    code, reason, odd: Odd, front: Front, caplog
):
    odd.status = (code, "a secret of /home/somebody")
    serving = await front()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.engine.Generate(ask(prompt=MARKED)).read()
    assert detail_of(caught.value).reason == reason
    assert "secret" not in str(caught.value.details())
    assert "secret" in caplog.text
    assert (await serving.generate(ask("r2"))).usage() == (5, 8), "the engine is still there"


async def test_a_request_that_gets_no_token_gives_its_slot_back(odd: Odd, front: Front):
    odd.hang_at = 0
    serving = await front(upstream_silence_timeout=2.0)
    silent = await serving.generate(ask(prompt=MARKED))
    assert silent.failure.reason == pb.ERROR_REASON_STUCK
    assert silent.failure.retryable
    await until_true(lambda: len(odd.cancelled) == 1)
    answers = words_of(serving, SLOTS, max_tokens=5)
    assert [(await answer).usage() for answer in answers] == SLOTS * [(5, 5)]
