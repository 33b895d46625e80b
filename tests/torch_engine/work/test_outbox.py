"""The words for what happened, made from requests alone."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import StepFailed
from enginewire.torch_engine.requests.candidates import Candidate
from enginewire.torch_engine.requests.scores import PromptScores, RowLogprobs
from enginewire.torch_engine.requests.sequence import Finish
from enginewire.torch_engine.work.outbox import OUTPUT_TOKENS, Outbox, handed_over_output
from tests.torch_engine.work.works import request_of

ROW = RowLogprobs(-0.5, 1, [], [], [])


def test_a_plain_token_is_a_row_of_columns_and_nothing_to_wait_for():
    outbox, request = Outbox(), request_of(3, 9, n=2)
    request.sequences[1].append(8)
    outbox.token(request.sequences[1], None)
    assert not outbox.has_news
    told = outbox.take(4)
    assert (told.step, told.indexes, told.positions, told.token_ids) == (4, [1], [0], [8])
    assert outbox.take(5).is_empty


def test_ends_and_failures_are_news():
    outbox, request = Outbox(), request_of(3, 9)
    outbox.failure(request.context, StepFailed("no"))
    assert outbox.has_news
    outbox.take(1)
    outbox.end(request.sequences[0], None)
    assert outbox.has_news


def test_a_token_with_log_probabilities_is_an_output_of_its_own():
    outbox, request = Outbox(), request_of(3, 9)
    request.sequences[0].append(8)
    outbox.token(request.sequences[0], ROW)
    ((_, output),) = outbox.take(1).outputs
    assert list(output.logprobs.token_logprobs) == [-0.5]


def test_the_scores_of_a_prompt_travel_once_with_the_first_output_of_the_first_choice():
    outbox, request = Outbox(), request_of(2, 9, n=2)
    request.prompt_scores = PromptScores(1, 0)
    first, second = request.sequences
    for sequence in (first, second):
        sequence.append(8)
    outbox.end(second, None)
    outbox.end(first, None)
    request.prompt_scores.tokens.append(-2.0)
    outbox.token(second, None)
    outbox.token(second, ROW)
    outbox.token(first, None)
    outbox.token(first, None)
    told = outbox.take(1)
    assert [out.HasField("prompt_logprobs") for _, out in told.outputs] == [False, False, False, True]
    assert (told.indexes, told.token_ids) == ([1, 0], [8, 8])


@pytest.mark.parametrize("finish", [*Finish, None])
def test_only_a_stop_token_is_named(finish):
    outbox, request = Outbox(), request_of(2, 9)
    request.sequences[0].append(8)
    outbox.end(request.sequences[0], finish, 1)
    ((_, end),) = outbox.take(1).outputs
    assert end.HasField("stop_match") == (finish is Finish.STOP)
    assert end.finish_reason != pb.FINISH_REASON_UNSPECIFIED


@pytest.mark.parametrize("rows", [(), (ROW,)])
def test_a_whole_choice_comes_in_parts_and_only_the_last_one_ends_it(rows):
    outbox, request, count = Outbox(), request_of(2, 9), OUTPUT_TOKENS + 2
    outbox.choices(request, [Candidate(0.0, list(range(count)), Finish.STOP, rows * count)])
    parts = [out for _, out in outbox.take(1).outputs]
    assert [len(part.token_ids) for part in parts] == [OUTPUT_TOKENS, 2]
    assert [part.first_output_position for part in parts] == [0, OUTPUT_TOKENS]
    assert [part.finish_reason for part in parts] == [pb.FINISH_REASON_UNSPECIFIED, pb.FINISH_REASON_STOP]
    assert [part.HasField("completion_usage") for part in parts] == [False, True]
    sums = [-0.5 * OUTPUT_TOKENS, -0.5 * count] if rows else [0.0, 0.0]
    assert [part.cum_log_probs for part in parts] == sums


def test_cancelled_choices_are_told_without_tokens():
    outbox, request = Outbox(), request_of(2, 9)
    outbox.choices(request, [Candidate(0.0, [], None)] * 2)
    outputs = [out for _, out in outbox.take(1).outputs]
    assert [(out.index, out.finish_reason) for out in outputs] == [
        (0, pb.FINISH_REASON_CANCELLED),
        (1, pb.FINISH_REASON_CANCELLED),
    ]
    assert outputs[1].completion_usage.completion_tokens == 0


def test_a_hand_off_that_nobody_wants_any_more_is_cancelled():
    outputs = [handed_over_output(request_of(3, 9), handoff) for handoff in (None, pb.PrefillHandoff())]
    reasons = [pb.FINISH_REASON_CANCELLED, pb.FINISH_REASON_LENGTH]
    assert [output.finish_reason for output in outputs] == reasons
    assert all(output.completion_usage.total_tokens == 3 for output in outputs)
