from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.stream import Chunk
from enginewire.backend.frontends.dynamo.answer import Answer

CLOSE = 1e-6


def chunk(output: pb.LLMEngineOutput) -> Chunk:
    return Chunk(output.index, output.first_output_position, list(output.token_ids), output)


def test_tokens_alone_are_sent_alone() -> None:
    answer = Answer([1], 1)
    assert answer.output(Chunk(0, 0, [5, 6])) == {"token_ids": [5, 6], "index": 0}
    assert answer.output(Chunk(0, 2, [7])) == {"token_ids": [7], "index": 0}
    assert not answer.is_finished


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ({"finish_reason": pb.FINISH_REASON_EOS}, {"finish_reason": "eos"}),
        ({"finish_reason": pb.FINISH_REASON_LENGTH}, {"finish_reason": "length"}),
        (
            {"finish_reason": pb.FINISH_REASON_STOP, "stop_match": pb.StopMatch(token_id=0)},
            {"finish_reason": "stop", "stop_reason": 0},
        ),
        ({"finish_reason": pb.FINISH_REASON_CANCELLED}, {"finish_reason": "cancelled"}),
        ({"finish_reason": pb.FINISH_REASON_CONTENT_FILTER}, {"finish_reason": "content_filter"}),
        (
            {"finish_reason": pb.FINISH_REASON_ERROR, "error_message": "out of luck"},
            {"finish_reason": "error: out of luck"},
        ),
    ],
)
def test_an_end_is_told_in_dynamos_words(output: dict[str, object], said: dict[str, object]) -> None:
    answer = Answer([1], 1)
    ended = answer.output(chunk(pb.LLMEngineOutput(token_ids=[9], **output)))
    assert ended == {"token_ids": [9], "index": 0, **said}
    assert answer.is_finished


def test_every_choice_has_to_end() -> None:
    answer = Answer([1], 2)
    answer.output(chunk(pb.LLMEngineOutput(index=1, finish_reason=pb.FINISH_REASON_LENGTH)))
    assert not answer.is_finished
    usage = pb.CompletionUsage(
        prompt_tokens=1,
        completion_tokens=3,
        total_tokens=4,
        prompt_tokens_details=pb.PromptTokensDetails(cached_tokens=0),
    )
    last = pb.LLMEngineOutput(finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=usage)
    assert answer.output(chunk(last))["completion_usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 3,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer.is_finished


@pytest.mark.parametrize(
    "wrong",
    [Chunk(0, 1, [5]), Chunk(1, 0, [5]), Chunk(0, 0, [])],
    ids=["a gap", "no choice of this request", "behind its end"],
)
def test_what_cannot_follow_is_a_violation(wrong: Chunk) -> None:
    answer = Answer([1], 1)
    if not wrong.token_ids:
        answer.output(chunk(pb.LLMEngineOutput(finish_reason=pb.FINISH_REASON_EOS)))
    with pytest.raises(RequestFailed) as caught:
        answer.output(wrong)
    assert caught.value.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION


def test_log_probabilities_stand_beside_their_tokens() -> None:
    logprobs = pb.Logprobs(
        token_logprobs=[-1, -1e30], top_n=2, top_token_ids=[5, 6, 7, 8], top_logprobs=[-1, -2, -3, -1e30]
    )
    said = Answer([1], 1).output(
        chunk(pb.LLMEngineOutput(token_ids=[5, 9], logprobs=logprobs, cum_log_probs=-4))
    )
    assert said["log_probs"] == [-1, -9999.0]
    assert said["cum_log_probs"] == -4
    assert [
        [(row["rank"], row["token_id"], row["logprob"]) for row in rows] for rows in said["top_logprobs"]
    ] == [
        [(1, 5, -1), (2, 6, -2)],
        [(1, 7, -3), (2, 8, -9999.0)],
    ]


def test_the_log_probability_alone_has_no_rows() -> None:
    output = pb.LLMEngineOutput(token_ids=[5], logprobs=pb.Logprobs(token_logprobs=[-1]))
    assert "top_logprobs" not in Answer([1], 1).output(chunk(output))


def test_log_probabilities_of_the_prompt_come_with_the_end() -> None:
    columns = pb.Logprobs(
        token_logprobs=[-3, -0.5], token_ranks=[4, 1], top_n=1, top_token_ids=[7, 12], top_logprobs=[-1, -0.5]
    )
    answer = Answer([10, 11, 12], 1)
    first = pb.LLMEngineOutput(token_ids=[5], prompt_logprobs=pb.PromptLogprobs(logprobs=columns))
    assert "engine_data" not in answer.output(chunk(first))
    end = pb.LLMEngineOutput(
        first_output_position=1, finish_reason=pb.FINISH_REASON_EOS, engine_data=b'{"a": 1}'
    )
    assert answer.output(chunk(end))["engine_data"] == {
        "a": 1,
        "prompt_logprobs": [
            None,
            {"11": {"logprob": -3, "rank": 4}, "7": {"logprob": -1, "rank": 1}},
            {"12": {"logprob": -0.5, "rank": 1}},
        ],
    }
