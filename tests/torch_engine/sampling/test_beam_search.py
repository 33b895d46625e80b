"""Beam search equals `generate` of transformers, token for token, however the beams are scheduled."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import cache

import pytest
import torch

from enginewire import v1 as pb
from enginewire.server.failures import EngineError, InvalidRequest, Unsupported
from tests.long import long_but
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.tiny import FAMILIES, Answer, greedy

PROMPT = prompts((21,))[0]
EOS = 1


def ask(
    prompt: Seq[int] = PROMPT,
    n: int = 2,
    width: int = 4,
    penalty: float | None = None,
    max_tokens: int = 20,
    stops: Seq[int] = (EOS,),
    min_tokens: int = 0,
    logprobs: int | None = None,
    **options: object,
) -> pb.PreprocessedRequest:
    return pb.PreprocessedRequest(
        token_ids=prompt,
        eos_token_ids=stops,
        sampling_options=pb.SamplingOptions(
            n=n, best_of=width, use_beam_search=True, length_penalty=penalty, **options
        ),
        stop_conditions=pb.StopConditions(max_tokens=max_tokens, min_tokens=min_tokens),
        output_options=pb.OutputOptions(logprobs=logprobs),
    )


def generate(network, request: pb.PreprocessedRequest) -> list[list[int]]:
    """What transformers says, without the padding behind an end; asked once for all that ask the same."""
    asked = pb.PreprocessedRequest()
    asked.CopyFrom(request)
    asked.ClearField("bypass_prefix_cache")
    return _generate(network, asked.SerializeToString(deterministic=True))


@cache
def _generate(network, asked: bytes) -> list[list[int]]:
    request = pb.PreprocessedRequest.FromString(asked)
    options, stop = request.sampling_options, request.stop_conditions
    ids = torch.tensor([list(request.token_ids)])
    penalised = options.HasField("repetition_penalty")
    made = network.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=options.best_of,
        num_return_sequences=options.n,
        length_penalty=options.length_penalty if options.HasField("length_penalty") else 1.0,
        max_new_tokens=stop.max_tokens,
        min_new_tokens=stop.min_tokens - 1 if stop.min_tokens > 1 else None,
        repetition_penalty=options.repetition_penalty if penalised else None,
        eos_token_id=list(request.eos_token_ids) or None,
        pad_token_id=0,
    )
    return [_until_end(row, set(request.eos_token_ids)) for row in made[:, len(request.token_ids) :].tolist()]


def _until_end(tokens: list[int], stops: set[int]) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens


def choices(answer: Answer) -> list[list[int]]:
    assert answer.error is None
    assert sorted(answer.tokens) == list(range(len(answer.tokens)))
    return [answer.tokens[index] for index in range(len(answer.tokens))]


@pytest.fixture
def network(oracle):
    model = oracle("llama")
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture
def stops(network) -> list[int]:
    """Ids that the model often wants, so that hypotheses of many lengths end."""
    with torch.inference_mode():
        logits = network(torch.tensor(prompts((60,)))).logits[0]
    return logits.topk(3).indices.flatten().bincount().topk(3).indices.tolist()


@pytest.mark.parametrize("family", long_but(["llama"], FAMILIES))
def test_every_family_equals_transformers(family, load, oracle):
    oracle(family).generation_config.eos_token_id = None
    for width, n in ((1, 1), (2, 1), (3, 3), (5, 2)):
        request = ask(n=n, width=width, stops=())
        request.stop_conditions.ignore_eos = True
        assert choices(load(family).answer(request)) == generate(oracle(family), request)


@pytest.mark.parametrize("penalty", long_but([None, 2.0], [None, -1.0, 0.0, 0.5, 2.0]))
@pytest.mark.parametrize("min_tokens", [0, 6])
def test_ends_and_length_penalties_equal_transformers(load, network, stops, penalty, min_tokens):
    engine = load("llama")
    lengths = set()
    for prompt in prompts((3, 16, 30, 41)):
        request = ask(prompt, 3, 4, penalty, 24, stops, min_tokens)
        found = choices(engine.answer(request))
        assert found == generate(network, request)
        lengths |= set(map(len, found))
    assert len(lengths) > 1 or penalty == 2.0  # which makes the longest the best
    assert min(lengths) >= min_tokens


def test_penalties_apply_to_the_beams_as_in_transformers(load, network, stops):
    request = ask(n=4, stops=stops, repetition_penalty=1.4)
    assert choices(load("llama").answer(request)) == generate(network, request)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 2},
        {"max_num_seqs": 1, "max_num_batched_tokens": 5},
        {"max_num_batched_tokens": 7, "max_num_seqs": 5, "block_size": 4},
        {"num_kv_blocks": 12, "block_size": 4, "max_model_len": 47},
        {"num_kv_blocks": 14, "block_size": 4, "max_model_len": 47, "enable_prefix_caching": False},
        {"max_num_seqs": 6, "waiting_served_ratio": 1.2},
    ],
)
@pytest.mark.parametrize("bypass", [False, True])
def test_crowds_chunks_and_preemption_change_nothing(load, network, expected, stops, options, bypass):
    engine = load("llama", **options)
    requests = [ask(prompt, 2, 4, None, 14, stops) for prompt in prompts((9, 17, 30))]
    contexts = []
    for request in requests:
        request.bypass_prefix_cache = bypass
        contexts.append(engine.add(request))
        engine.step()
        engine.step()
    plain = engine.add(greedy(PROMPT, 12))
    steps = 0
    while engine.core.has_work:
        assert len(engine.core.scheduler.running) <= engine.core.scheduler.max_num_seqs
        assert (steps := steps + 1) < 3000
        engine.step()
    engine.run()
    for context, request in zip(contexts, requests, strict=True):
        assert choices(engine.answers[context]) == generate(network, request)
    assert engine.answers[plain].tokens[0] == expected("llama", PROMPT, 12)
    if bypass:
        cached = engine.core.scheduler.pool.num_cached
        assert cached <= (len(PROMPT) + 12) // engine.core.scheduler.pool.block_size


def test_usage_counts_what_is_returned_on_the_last_terminal_alone(load, stops):
    answer = load("llama").answer(ask(n=3, stops=stops))
    carriers = [output for output in answer.outputs if output.HasField("completion_usage")]
    assert carriers == answer.terminals[-1:] == answer.outputs[-1:]
    assert carriers[0].completion_usage.completion_tokens == sum(map(len, answer.tokens.values()))
    assert carriers[0].completion_usage.prompt_tokens == len(PROMPT)
    assert len(answer.terminals) == 3


def test_finish_reasons_say_what_ended_each_hypothesis(load, network, stops):
    request = ask(n=4, stops=stops[:1], max_tokens=8)
    request.stop_conditions.stop_token_ids.append(stops[1])
    answer = load("llama").answer(request)
    seen = set()
    for terminal in answer.terminals:
        last = answer.tokens[terminal.index][-1]
        expected = (
            pb.FINISH_REASON_EOS
            if last == stops[0]
            else pb.FINISH_REASON_STOP
            if last == stops[1]
            else pb.FINISH_REASON_LENGTH
        )
        assert terminal.finish_reason == expected
        assert terminal.stop_match.token_id == (stops[1] if last == stops[1] else 0)
        seen.add(expected)
    assert len(seen) > 1


def test_log_probabilities_are_those_of_the_model(load, network, stops):
    answer = load("llama").answer(ask(n=2, stops=stops, logprobs=2, logit_bias=[{"token_id": 7, "bias": 3}]))
    for index, tokens in enumerate(choices(answer)):
        with torch.inference_mode():
            scores = network(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
        wanted = scores.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        (output,) = (output for output in answer.outputs if output.index == index)
        assert torch.tensor(output.logprobs.token_logprobs).allclose(wanted, atol=1e-4)
        assert list(output.logprobs.top_token_ids) == scores.topk(2).indices.flatten().tolist()
        assert output.cum_log_probs == pytest.approx(float(wanted.sum()), abs=1e-3)


def test_without_the_question_there_are_no_log_probabilities(load):
    for output in load("llama").answer(ask()).outputs:
        assert not output.HasField("logprobs")
        assert not output.HasField("cum_log_probs")


def test_a_long_hypothesis_comes_in_several_outputs(load, monkeypatch):
    monkeypatch.setattr("enginewire.torch_engine.work.outbox.OUTPUT_TOKENS", 5)
    whole = load("llama").answer(ask(stops=(), max_tokens=12, logprobs=0))
    assert [len(output.token_ids) for output in whole.outputs] == [5, 5, 2] * 2
    assert all(len(output.logprobs.token_logprobs) == len(output.token_ids) for output in whole.outputs)
    assert whole.outputs[1].cum_log_probs > whole.outputs[2].cum_log_probs


def test_prompt_log_probabilities_come_with_the_best_one(load):
    request = ask()
    request.output_options.prompt_logprobs = 1
    outputs = load("llama").answer(request).outputs
    assert [output.HasField("prompt_logprobs") for output in outputs] == [True, False]
    assert len(outputs[0].prompt_logprobs.logprobs.token_logprobs) == len(PROMPT) - 1


def test_an_abort_ends_every_choice_as_cancelled_and_frees_the_beams(load):
    engine = load("llama")
    context = engine.add(ask(stops=(), max_tokens=100))
    for _ in range(6):
        engine.step()
    assert engine.core.scheduler.pool.num_used > 0
    engine.core.live.abort(context)
    engine.run()
    answer = engine.answers[context]
    assert [output.finish_reason for output in answer.outputs] == [pb.FINISH_REASON_CANCELLED] * 2
    assert answer.outputs[-1].HasField("completion_usage")


def test_lists_that_leave_too_few_hypotheses_are_the_callers_contradiction(load):
    error = load("llama").answer(ask(n=2, allowed_token_ids=[5])).error
    assert isinstance(error, InvalidRequest)
    assert error.field == "sampling_options.allowed_token_ids"


def test_extreme_length_penalties_are_no_accident(load):
    for penalty in (1e30, -1e30):
        assert len(choices(load("llama").answer(ask(penalty=penalty)))) == 2


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("temperature", {"temperature": 0.7}),
        ("top_p", {"top_p": 0.9}),
        ("top_k", {"top_k": 5}),
        ("min_p", {"min_p": 0.1}),
        ("seed", {"seed": 0}),
        ("best_of", {"n": 5}),
        ("best_of", {"width": 65}),
        ("length_penalty", {"penalty": float("nan")}),
    ],
)
def test_what_makes_no_sense_in_a_beam_search_is_refused_by_name(load, field, options):
    with pytest.raises(InvalidRequest) as caught:
        load("llama").answer(ask(**options))
    assert caught.value.field == f"sampling_options.{field}"


def test_a_length_penalty_without_beams_is_refused(load):
    request = greedy(PROMPT, 3)
    request.sampling_options.length_penalty = 2.0
    with pytest.raises(InvalidRequest) as caught:
        load("llama").answer(request)
    assert caught.value.field == "sampling_options.length_penalty"


def test_grammars_and_resumed_choices_are_unsupported(load):
    guided, resumed = ask(), ask()
    guided.sampling_options.guided_decoding.regex = "a"
    resumed.resume.choices.add(index=0, generated_token_ids=[3])
    for request, field in ((guided, "sampling_options.guided_decoding"), (resumed, "resume.choices")):
        with pytest.raises(Unsupported) as caught:
            load("llama").answer(request)
        assert isinstance(caught.value, EngineError)
        assert caught.value.field == field


@pytest.mark.parametrize("bypass", [False, True])
def test_beams_share_what_is_computed(load, monkeypatch, bypass):
    engine = load("llama", block_size=4)
    computed = []
    forward = engine.core._runner.forward

    def counting(batch, unread):
        computed.append(sum(grant.num_tokens for grant in batch))
        return forward(batch, unread)

    monkeypatch.setattr(engine.core._runner, "forward", counting, raising=False)
    request = ask(prompts((60,))[0], 4, 4, max_tokens=10, stops=())
    request.bypass_prefix_cache = bypass
    engine.answer(request)
    assert computed[0] == 60
    assert max(computed[1:]) <= 4 * (4 + 1)


def test_beams_begin_with_what_others_have_left_in_the_cache(load, network):
    engine = load("llama", block_size=4)
    engine.answer(greedy(PROMPT, 1))
    request = ask(stops=())
    answer = engine.answer(request)
    assert choices(answer) == generate(network, request)
    assert answer.outputs[-1].completion_usage.prompt_tokens_details.cached_tokens == 20
