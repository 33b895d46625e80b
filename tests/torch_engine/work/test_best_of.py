"""Of several candidates only the best are returned, best first, and nothing of the others."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest, Unsupported

PROMPT = [5, 9, 33, 7, 100, 12]


@pytest.fixture
def engine(load):
    return load("llama")


def ask(
    n: int, best_of: int | None, logprobs: int | None = None, max_tokens: int = 12
) -> pb.PreprocessedRequest:
    return pb.PreprocessedRequest(
        token_ids=PROMPT,
        sampling_options=pb.SamplingOptions(temperature=1.0, seed=3, n=n, best_of=best_of),
        stop_conditions=pb.StopConditions(max_tokens=max_tokens),
        output_options=pb.OutputOptions(logprobs=logprobs),
    )


def test_the_best_candidates_come_back_best_first(engine):
    everyone = engine.answer(ask(5, None, logprobs=1))
    scores = {output.index: output.cum_log_probs for output in everyone.terminals}
    best = sorted(scores, key=scores.__getitem__, reverse=True)[:2]
    assert len(set(scores.values())) == 5
    answer = engine.answer(ask(2, 5, logprobs=1))
    assert dict(answer.tokens) == {rank: everyone.tokens[index] for rank, index in enumerate(best)}
    assert [output.cum_log_probs for output in answer.terminals] == [scores[index] for index in best]
    assert all(output.HasField("logprobs") for output in answer.outputs)


@pytest.mark.parametrize("seed", range(6))
def test_usage_counts_what_is_returned_on_the_last_terminal_alone(engine, seed):
    request = ask(2, 5)
    request.sampling_options.seed = seed
    answer = engine.answer(request)
    carriers = [output for output in answer.outputs if output.HasField("completion_usage")]
    assert carriers == answer.terminals[-1:] == answer.outputs[-1:]
    assert carriers[0].completion_usage.completion_tokens == sum(map(len, answer.tokens.values()))
    assert carriers[0].completion_usage.prompt_tokens == len(PROMPT)


def test_log_probabilities_are_left_out_unless_they_were_asked_for(engine):
    answer = engine.answer(ask(1, 3))
    assert answer.tokens[0]
    assert not any(
        output.HasField("logprobs") or output.HasField("cum_log_probs") for output in answer.outputs
    )


def test_nothing_is_delivered_before_the_last_candidate_has_ended(engine):
    context = engine.add(ask(1, 3))
    while engine.core.live.contexts:
        assert not engine.answers[context].outputs
        engine.step()
    assert len(engine.answers[context].terminals) == 1


def test_an_abort_ends_every_choice_as_cancelled_without_tokens(engine):
    context = engine.add(ask(2, 4, max_tokens=200))
    for _ in range(5):
        engine.step()
    engine.core.live.abort(context)
    engine.run()
    answer = engine.answers[context]
    assert [(out.index, out.finish_reason) for out in answer.outputs] == [
        (0, pb.FINISH_REASON_CANCELLED),
        (1, pb.FINISH_REASON_CANCELLED),
    ]
    assert answer.outputs[-1].completion_usage.completion_tokens == 0


def test_best_of_equal_to_n_streams_as_usual(engine):
    assert engine.answer(ask(2, 2)).tokens == engine.answer(ask(2, None)).tokens


@pytest.mark.parametrize(("n", "best_of"), [(2, 1), (1, 65)])
def test_a_best_of_out_of_range_is_refused_by_name(engine, n, best_of):
    with pytest.raises(InvalidRequest) as caught:
        engine.answer(ask(n, best_of))
    assert caught.value.field == "sampling_options.best_of"


def test_a_part_of_the_best_cannot_be_resumed(engine):
    request = ask(1, 3)
    request.resume.choices.add(index=0, generated_token_ids=[4])
    with pytest.raises(Unsupported):
        engine.answer(request)
