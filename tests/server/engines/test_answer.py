"""What an `Answer` makes of any tokens passes the full check; slots are given in order."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, seed, settings, strategies as st

from enginewire import v1 as pb
from enginewire.server.admission.request_check import RequestCheck
from enginewire.server.engines.answer import MAX_UINT32, Answer, ended_before, usage
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.iterator_driver import IteratorDriver
from enginewire.server.engines.slots import Slots
from tests.server.engines.test_documented_engine import documented_engine
from tests.server.serving import ask

IDS = st.integers(0, 5)
CONFIG = pb.EngineConfig(model="m", vocab_size=6, context_length=14, eos_token_ids=[5])


@st.composite
def requests(draw) -> pb.PreprocessedRequest:
    stop = pb.StopConditions(
        stop_token_ids=draw(st.lists(IDS, max_size=2)),
        stop_token_ids_hidden=draw(st.lists(IDS, max_size=1)),
        ignore_eos=draw(st.booleans()),
        min_tokens=draw(st.integers(0, 3)),
    )
    if draw(st.booleans()):
        stop.max_tokens = draw(st.integers(3, 20))
    n = draw(st.integers(1, 3))
    resumed = [
        pb.ResumedChoice(index=index, generated_token_ids=draw(st.lists(IDS, max_size=2)), finished=index > 0)
        for index in range(draw(st.integers(0, n - 1)))
    ]
    return pb.PreprocessedRequest(
        token_ids=draw(st.lists(IDS, min_size=1, max_size=8)),
        stop_conditions=stop,
        sampling_options=pb.SamplingOptions(n=n),
        resume=pb.Resume(choices=resumed),
        eos_token_ids=draw(st.lists(IDS, max_size=1)),
    )


@seed(11)
@settings(deadline=None)
@given(requests(), st.lists(st.tuples(IDS, st.integers(0, 2)), min_size=60, max_size=60), st.integers(0, 60))
def test_whatever_is_generated_keeps_the_contract_and_ends(request, tokens, cancelled_after):
    context = GenerateContext("r")
    answer, check = Answer(request, context, CONFIG), RequestCheck(request, CONFIG)
    is_open = set(range(request.sampling_options.n)) - {
        choice.index for choice in request.resume.choices if choice.finished
    }
    for number, (token_id, choice) in enumerate(tokens * 3):
        if number == cancelled_after:
            context.cancel("enough")
        if is_open:
            index = sorted(is_open)[choice % len(is_open)]
            output = answer.token(token_id, index)
            assert check.output(output) is None
            if output.finish_reason:
                is_open.remove(index)
    assert answer.is_finished
    assert not is_open


@seed(12)
@settings(deadline=None)
@given(requests(), st.lists(IDS, min_size=14, max_size=14))
def test_a_choice_that_was_handed_in_whole_ends_as_it_would_have(request, tokens):
    request.ClearField("resume")
    request.sampling_options.n = 2
    answer = Answer(request, GenerateContext("r"), CONFIG)
    outputs = [answer.token(tokens[0])]
    while not outputs[-1].finish_reason:
        outputs.append(answer.token(tokens[len(outputs)]))
    last = len(outputs) - 1
    for count in range(1, last + 2):
        request.resume.choices.add(index=0, generated_token_ids=tokens[:count])
        ended, check = ended_before(request, CONFIG), RequestCheck(request, CONFIG)
        assert [(each.finish_reason, each.stop_match) for each in ended] == [
            (outputs[last].finish_reason, outputs[last].stop_match)
        ] * (count > last)
        assert not any(check.output(output) or output.token_ids for output in ended)
        del request.resume.choices[:]


def test_a_total_beyond_all_numbers_is_held():
    assert usage(MAX_UINT32, 5).total_tokens == MAX_UINT32


@pytest.mark.parametrize(
    ("stop", "tokens", "reason"),
    [
        ({"stop_token_ids": [997]}, [998, 997], pb.FINISH_REASON_STOP),
        ({"stop_token_ids_hidden": [997]}, [998, 997], pb.FINISH_REASON_EOS),
        ({"stop_token_ids": [998], "min_tokens": 2, "max_tokens": 2}, [998, 997], pb.FINISH_REASON_LENGTH),
        ({"stop_token_ids": [998, 997], "min_tokens": 2}, [998, 997], pb.FINISH_REASON_STOP),
    ],
)
async def test_the_documented_engine_stops_where_it_is_asked_to(engine_server, stop, tokens, reason):
    serving = await engine_server(engine=IteratorDriver(documented_engine()), check_engine=True)
    request = pb.PreprocessedRequest(token_ids=[999], stop_conditions=pb.StopConditions(**stop))
    answer = await serving.generate(pb.GenerateRequest(request_id="r", request=request))
    assert answer.tokens() == tokens
    assert answer.finishes() == {0: reason}


async def test_no_more_run_than_there_are_places_and_all_get_their_turn(engine_server):
    engine, may_go_on = documented_engine(), asyncio.Event()
    generate = engine.generate

    async def held(request, context):
        async for output in generate(request, context):
            await may_go_on.wait()
            yield output

    engine.generate = held
    serving = await engine_server(engine=IteratorDriver(engine), check_engine=True)
    answers = [asyncio.create_task(serving.generate(ask(f"r{i}", max_tokens=6))) for i in range(40)]
    load = await serving.until(lambda load: load.running + load.waiting == 40)
    assert (load.running, load.waiting) == (16, 24)
    may_go_on.set()
    for answer in await asyncio.gather(*answers):
        assert answer.usage() == (5, 6)


async def test_who_leaves_while_waiting_leaves_the_others_their_turn():
    slots = Slots()
    slots.num_slots = 1
    may_end = asyncio.Event()
    order: list[str] = []

    async def work(name: str) -> None:
        async with slots.take(1):
            order.append(name)
            await may_end.wait()

    tasks = [asyncio.create_task(work(name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    assert (order, slots.num_running, slots.num_waiting) == (["a"], 1, 1)
    may_end.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert (order, slots.num_running, slots.num_waiting) == (["a", "c"], 0, 0)


def test_the_first_token_is_noted_once():
    context = GenerateContext("r")
    context.notify_first_token()
    noted = context.first_token_at
    context.notify_first_token()
    assert context.first_token_at == noted is not None
