from __future__ import annotations

from typing import Any

import pytest

from enginewire import v1 as pb
from enginewire.server.admission.request_check import RequestCheck
from enginewire.server.engines.answer import usage

VOCAB, WINDOW, PROMPT, EOS, STOP = 100, 32, 3, 2, 50
LENGTH = pb.FINISH_REASON_LENGTH


def check_of(*, stop: dict[str, Any] | None = None, output: dict[str, Any] | None = None, **options: Any):
    request = pb.PreprocessedRequest(
        token_ids=[1] * PROMPT,
        stop_conditions=pb.StopConditions(**(stop or {})),
        sampling_options=pb.SamplingOptions(**options),
        output_options=pb.OutputOptions(**(output or {})),
    )
    config = pb.EngineConfig(vocab_size=VOCAB, context_length=WINDOW, eos_token_ids=[EOS])
    return RequestCheck(request, config)


def output_of(*token_ids: int, **fields: Any) -> pb.LLMEngineOutput:
    return pb.LLMEngineOutput(token_ids=token_ids, **fields)


def rows(*values: float, alternatives: int = 0) -> pb.Logprobs:
    return pb.Logprobs(token_logprobs=values, top_n=1, top_token_ids=[1] * alternatives)


LOGPROBS = {"output": {"logprobs": 1}}


@pytest.mark.parametrize(
    ("asked", "sent", "fault"),
    [
        ({}, b"bytes", "an output must be an LLMEngineOutput, got bytes"),
        ({}, output_of(7, index=1), "choice 1 has ended or was not asked for"),
        ({}, output_of(7, first_output_position=1), "position 1 of choice 0, expected 0"),
        ({}, output_of(VOCAB), "token id 100 is not below vocab_size 100"),
        ({"stop": {"max_tokens": 2}}, output_of(7, 8, 9), "choice 0 has 3 tokens, at most 2 fit max_tokens"),
        ({}, output_of(*[7] * 30), "choice 0 has 30 tokens, at most 29 fit max_tokens and context_length"),
        ({"allowed_token_ids": [7]}, output_of(7, 8), "token id 8 is not among allowed_token_ids"),
        ({}, output_of(7, EOS, 8), "token id 2 is a stop or end-of-sequence id, but choice 0 goes on"),
        (
            {"stop": {"stop_token_ids": [STOP]}},
            output_of(STOP),
            "token id 50 is a stop or end-of-sequence id",
        ),
        ({}, output_of(), "an output without token_ids"),
        ({}, output_of(7, completion_usage=usage(3, 1)), "completion_usage belongs to an output with a"),
        ({}, output_of(7, finish_reason=99), "finish_reason 99 is none of the contract's"),
        (
            {},
            output_of(7, finish_reason=LENGTH, error_message="broken"),
            "error_message goes with FINISH_REASON_ERROR only",
        ),
        (
            {"n": 2},
            output_of(7, finish_reason=LENGTH, completion_usage=usage(3, 1)),
            "completion_usage belongs to the last terminal output",
        ),
        (
            {},
            output_of(7, finish_reason=LENGTH, completion_usage=usage(3, 2)),
            "completion_usage.completion_tokens is 2, expected 1",
        ),
        (
            {"stop": {"stop_token_ids": [STOP]}},
            output_of(7, finish_reason=pb.FINISH_REASON_STOP),
            "FINISH_REASON_STOP after token id 7: needs a stop id",
        ),
        (
            {"stop": {"stop_token_ids": [STOP]}},
            output_of(STOP, finish_reason=pb.FINISH_REASON_STOP),
            "FINISH_REASON_STOP after token id 50: needs a stop id, and stop_match with it",
        ),
        (
            {},
            output_of(7, finish_reason=LENGTH, stop_match=pb.StopMatch(token_id=7)),
            "stop_match goes with FINISH_REASON_STOP only",
        ),
        (
            {"stop": {"stop_token_ids": [STOP], "min_tokens": 2}},
            output_of(STOP, finish_reason=pb.FINISH_REASON_STOP, stop_match=pb.StopMatch(token_id=STOP)),
            "choice 0 was stopped below min_tokens 2",
        ),
        ({}, output_of(7, logprobs=rows(-1.0)), "logprobs that were not asked for"),
        (LOGPROBS, output_of(7), "logprobs have 0 rows for 1 token_ids"),
        (LOGPROBS, output_of(7, logprobs=rows(-1.0)), "logprobs need top_n 1 alternatives in each of 1 rows"),
        (LOGPROBS, output_of(7, logprobs=rows(-1.0, alternatives=2)), "logprobs need top_n 1 alternatives"),
        (
            LOGPROBS,
            output_of(7, logprobs=pb.Logprobs(token_logprobs=[0.1])),
            "logprobs must be finite and at most 0",
        ),
        (
            LOGPROBS,
            output_of(7, logprobs=pb.Logprobs(token_logprobs=[float("-inf")])),
            "logprobs must be finite and at most 0",
        ),
    ],
)
def test_the_first_fault_is_a_sentence(asked: dict[str, Any], sent: object, fault: str) -> None:
    found = check_of(**asked).output(sent)
    assert found is not None
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, [output_of(7, 8), output_of(EOS, first_output_position=2, finish_reason=pb.FINISH_REASON_EOS)]),
        ({"stop": {"min_tokens": 2}}, [output_of(EOS, 8), output_of(9, first_output_position=2)]),
        ({"stop": {"ignore_eos": True}}, [output_of(EOS, EOS)]),
        (LOGPROBS, [output_of(7, logprobs=pb.Logprobs(token_logprobs=[0.0005]))]),
        ({"n": 2}, [output_of(7, finish_reason=LENGTH), output_of(7, index=1)]),
    ],
)
def test_what_the_contract_allows_is_no_fault(asked: dict[str, Any], sent: list[pb.LLMEngineOutput]) -> None:
    if sent[-1].finish_reason:
        sent[-1].completion_usage.CopyFrom(usage(PROMPT, sum(len(each.token_ids) for each in sent)))
    check = check_of(**asked)
    assert [check.output(each) for each in sent] == [None] * len(sent)


def test_nothing_comes_behind_the_end_of_a_choice() -> None:
    check = check_of(n=2)
    assert check.output(output_of(7, finish_reason=LENGTH)) is None
    assert check.row(0, 1, 8) == "choice 0 has ended or was not asked for, and gets more"
