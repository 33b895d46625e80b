from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.conformance.oracle.ask import Answer
from enginewire.conformance.oracle.case import Case
from enginewire.conformance.oracle.judge import Fault, judge, requirement
from enginewire.conformance.session.context import Greedy
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.oracle.cases import OFFER, RUNS

RUN = RUNS[0]
STOPPED = Case(max_tokens=8, stop_token_ids=(12,))
LENGTH, STOP, EOS = pb.FINISH_REASON_LENGTH, pb.FINISH_REASON_STOP, pb.FINISH_REASON_EOS


def answer(
    tokens: list[int], reason: pb.FinishReason.ValueType, *, match: int | None = None, begin: int = 0
) -> Answer:
    outputs = [pb.LLMEngineOutput(token_ids=[token]) for token in tokens]
    for position, output in enumerate(outputs, begin):
        output.first_output_position = position
    outputs[-1].finish_reason = reason
    if match is not None:
        outputs[-1].stop_match.token_id = match
    sent, prompt = begin + len(tokens), len(RUN.prompt)
    usage = pb.CompletionUsage(prompt_tokens=prompt, completion_tokens=sent, total_tokens=prompt + sent)
    outputs[-1].completion_usage.CopyFrom(usage)
    return Answer(outputs, "OK", Exchange("EngineService.Generate", None))


def rule(case: Case, given: Answer) -> str:
    fault = judge(case, given, RUN, OFFER)
    return requirement(fault, case) if fault else ""


def test_the_answer_that_is_due_has_no_fault() -> None:
    assert rule(STOPPED, answer([10, 11, 12], STOP, match=12)) == ""
    assert rule(Case(max_tokens=2), answer([10, 11], LENGTH)) == ""
    resumed = Case(max_tokens=3, resumed=(2,))
    assert rule(resumed, answer([12], LENGTH, begin=2)) == ""


@pytest.mark.parametrize(
    ("case", "given", "expected"),
    [
        (STOPPED, answer([10, 11, 12], LENGTH), "STP-01"),
        (STOPPED, answer([10, 11, 12, 13], STOP, match=12), "STP-01"),
        (STOPPED, answer([10, 11], STOP, match=12), "STP-02"),
        (STOPPED, answer([10, 11, 12], STOP, match=13), "STP-03"),
        (Case(max_tokens=3, eos_token_ids=(12,)), answer([10, 11, 12], LENGTH), "STP-04"),
        (Case(max_tokens=3, eos_token_ids=(12,)), answer([10, 11, 12], EOS, match=12), "STP-03"),
        (Case(max_tokens=3, eos_token_ids=(11,), ignore_eos=True), answer([10, 11], EOS), "STP-04"),
        (Case(max_tokens=2), answer([10, 11, 12], LENGTH), "LIM-01"),
        (Case(max_tokens=2), answer([10, 11], EOS), "LIM-02"),
        (Case(max_tokens=4), answer([10, 11], LENGTH), "STR-06"),
        (Case(max_tokens=4, min_tokens=3, stop_token_ids=(11,)), answer([10, 11], STOP), "LIM-06"),
        (Case(max_tokens=4, together=True), answer([10, 11], EOS), "STP-07"),
        (Case(max_tokens=2), answer([10, 12], LENGTH), "SAM-01"),
        (Case(max_tokens=2, n=2), answer([10, 11], LENGTH), "SEQ-02"),
        (Case(max_tokens=3, resumed=(1,)), answer([11, 12, 13], LENGTH, begin=1), "RES-04"),
        (Case(max_tokens=3, resumed=(1,)), answer([11, 12], LENGTH), "RES-06"),
        (Case(max_tokens=2, multiplexed=True), answer([10, 11, 12], LENGTH), "MUX-01"),
    ],
)
def test_a_wrong_answer_breaks_the_requirement_that_says_so(case: Case, given: Answer, expected: str) -> None:
    assert rule(case, given) == expected


def test_an_engine_that_rounds_is_judged_by_its_own_tokens() -> None:
    rounding = replace(OFFER, is_exact=False)
    other = answer([10, 31, 32, 12], STOP, match=12)
    assert judge(STOPPED, other, RUN, rounding) is None
    ignored = answer([10, 31, 12, 33, 34, 35, 36, 37], LENGTH)
    fault = judge(STOPPED, ignored, RUN, rounding)
    assert fault is not None
    assert fault.rule == "STP-01"


def test_below_min_tokens_both_ways_of_an_engine_are_right() -> None:
    case = Case(max_tokens=4, min_tokens=3, stop_token_ids=(11,))
    assert rule(case, answer([10, 11, 12, 13], LENGTH)) == ""
    assert rule(case, answer([10, 50, 51, 52], LENGTH)) == ""


def test_a_request_that_found_no_room_beside_others_is_not_judged() -> None:
    busy = Answer([], "RESOURCE_EXHAUSTED", Exchange("EngineService.Generate", None), is_busy=True)
    assert judge(Case(max_tokens=2, together=True), busy, RUN, OFFER) is None
    assert judge(Case(max_tokens=2), busy, RUN, OFFER) is not None


def test_a_fault_belongs_to_the_option_that_it_needs() -> None:
    usage = Fault("USE-01", "", 1, 2)
    assert requirement(usage, Case(max_tokens=2)) == "USE-01"
    assert requirement(usage, Case(max_tokens=2, n=2)) == "SEQ-03"
    assert requirement(usage, Case(max_tokens=2, n=2, resumed=(1,))) == "RES-04"
    assert requirement(usage, Case(max_tokens=2, resumed=(1,), multiplexed=True)) == "MUX-01"


def test_each_choice_is_held_against_its_own_run() -> None:
    seeded = Greedy(RUN.prompt, RUN.tokens, ([30, 31, 32, 33, 34, 35, 36, 37],))
    both = [
        pb.LLMEngineOutput(token_ids=ids, index=index, finish_reason=LENGTH)
        for index, ids in enumerate(([10, 11], [30, 31]))
    ]
    usage = pb.CompletionUsage(prompt_tokens=len(RUN.prompt), completion_tokens=4, total_tokens=4)
    usage.total_tokens += len(RUN.prompt)
    both[1].completion_usage.CopyFrom(usage)
    case, exchange = Case(max_tokens=2, n=2), Exchange("EngineService.Generate", None)
    assert judge(case, Answer(both, "OK", exchange), seeded, OFFER) is None
    both[1].token_ids[0] = 10
    fault = judge(case, Answer(both, "OK", exchange), seeded, OFFER)
    assert fault
    assert fault.message == "choice 1 has other tokens than the seeded run"


def test_what_ends_early_behind_a_maximum_beyond_the_window_is_not_clamped() -> None:
    beyond = Case(max_tokens=4, beyond=1)
    assert rule(beyond, answer([10, 11, 12], LENGTH)) == "LIM-09"
    assert rule(replace(beyond, beyond=0), answer([10, 11, 12], LENGTH)) == "STR-06"
    assert [replace(beyond, beyond=count).asked_for for count in (0, 1, -1)] == [4, 5, None]
