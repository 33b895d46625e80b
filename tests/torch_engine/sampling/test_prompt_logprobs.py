"""Log-probabilities of the prompt equal those of transformers, however the prompt was computed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest, StepFailed
from enginewire.torch_engine.requests.limits import RequestLimits
from enginewire.torch_engine.scheduling import scheduler
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.tiny import FAMILIES, VOCAB, Answer, greedy

PROMPT = prompts((40,))[0]


def ask(prompt=PROMPT, top_n: int = 3, n: int = 1, max_tokens: int = 4) -> pb.PreprocessedRequest:
    request = greedy(prompt, max_tokens, n=n)
    request.output_options.prompt_logprobs = top_n
    return request


def found(answer: Answer) -> pb.Logprobs:
    """What came, on the first output of choice 0 and nowhere else."""
    assert answer.error is None
    firsts = [output for output in answer.outputs if output.index == 0][:1]
    assert [output for output in answer.outputs if output.HasField("prompt_logprobs")] == firsts
    return firsts[0].prompt_logprobs.logprobs


@torch.inference_mode()
def assert_exact(rows: pb.Logprobs, network, prompt: list[int], top_n: int) -> None:
    scores = network(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    tokens = scores.gather(-1, torch.tensor(prompt[1:])[:, None])
    top, top_ids = scores.topk(top_n)
    assert rows.top_n == top_n
    assert torch.tensor(rows.token_logprobs).allclose(tokens.flatten(), atol=1e-4)
    assert torch.tensor(rows.top_logprobs).allclose(top.flatten(), atol=1e-4)
    assert list(rows.top_token_ids) == top_ids.flatten().tolist()
    assert list(rows.token_ranks) == ((scores > tokens).sum(-1) + 1).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_one_piece_equals_transformers(family, load, oracle):
    for top_n in (0, 3):
        assert_exact(found(load(family).answer(ask(top_n=top_n))), oracle(family), PROMPT, top_n)


def test_chunks_crowds_and_preemption_change_nothing(load, oracle, expected):
    engine = load("llama", max_num_batched_tokens=7, max_num_seqs=5, block_size=4, num_kv_blocks=16)
    lengths = (9, 1, 2, 17, 20, 14, 33)
    contexts = []
    for prompt in prompts(lengths):
        contexts.append(engine.add(ask(prompt, max_tokens=12)))
        engine.step()
    engine.run()
    assert engine.core.scheduler.num_preemptions > 0
    for context, prompt in zip(contexts, prompts(lengths), strict=True):
        assert_exact(found(engine.answers[context]), oracle("llama"), prompt, 3)
        assert engine.answers[context].tokens[0] == expected("llama", prompt, 12)


def test_a_prompt_preempted_half_way_goes_on_with_the_rows_it_has(load, oracle):
    engine = load("llama", max_num_batched_tokens=9, max_num_seqs=2, block_size=4)
    context = engine.add(ask())
    engine.step()
    engine.step()
    scheduled = engine.core.scheduler
    scheduled._preempt(scheduled.running[0])
    engine.run()
    assert_exact(found(engine.answers[context]), oracle("llama"), PROMPT, 3)


def test_a_cached_prompt_is_computed_again(load, oracle):
    engine = load("llama")
    engine.answer(greedy(PROMPT, 4))
    answer = engine.answer(ask())
    assert_exact(found(answer), oracle("llama"), PROMPT, 3)
    assert answer.terminals[-1].completion_usage.prompt_tokens_details.cached_tokens == 0
    later = engine.answer(greedy(PROMPT, 4))
    assert later.terminals[-1].completion_usage.prompt_tokens_details.cached_tokens == 32


def test_several_choices_share_one_prompt(load, oracle):
    answer = load("llama").answer(ask(n=3))
    assert_exact(found(answer), oracle("llama"), PROMPT, 3)
    assert set(answer.tokens) == {0, 1, 2}


def test_a_resumed_choice_carries_them_with_its_first_new_token(load, oracle, expected):
    request = ask(max_tokens=8)
    tokens = expected("llama", PROMPT, 8)
    request.resume.choices.add(index=0, generated_token_ids=tokens[:3])
    answer = load("llama").answer(request)
    assert_exact(found(answer), oracle("llama"), PROMPT, 3)
    assert answer.tokens[0] == tokens[3:]


def test_the_best_of_several_carries_them_on_its_first_output(load, oracle):
    request = ask(n=2)
    request.sampling_options.best_of = 4
    request.sampling_options.temperature = 1.0
    assert_exact(found(load("llama").answer(request)), oracle("llama"), PROMPT, 3)


def test_few_rows_of_logits_are_made_per_step(load, oracle, monkeypatch):
    monkeypatch.setattr(scheduler, "SCORED_TOKENS", 8)
    engine = load("llama")
    made = []
    forward = engine.core._runner.forward
    monkeypatch.setattr(
        engine.core._runner, "forward", lambda *of: made.append(forward(*of)) or made[-1], raising=False
    )
    contexts = [engine.add(ask(prompt)) for prompt in prompts((40, 25, 9))]
    engine.run()
    assert max(len(computed.logits) for computed in made) <= 8 + len(contexts)
    for context, prompt in zip(contexts, prompts((40, 25, 9)), strict=True):
        assert_exact(found(engine.answers[context]), oracle("llama"), prompt, 3)


def test_a_cancelled_prompt_has_none(load):
    engine = load("llama", max_num_batched_tokens=8)
    context = engine.add(ask())
    engine.step()
    engine.core.live.abort(context)
    engine.run()
    assert not engine.answers[context].outputs[0].HasField("prompt_logprobs")


def test_a_prompt_whose_logits_are_no_numbers_fails_alone(load, monkeypatch):
    engine = load("llama")
    forward = engine.core._runner.forward

    def poisoned(batch, unread):
        computed = forward(batch, unread)
        logits = computed.logits.clone()
        logits[2:3] = float("nan")  # the first two rows sample
        return replace(computed, logits=logits)

    monkeypatch.setattr(engine.core._runner, "forward", poisoned, raising=False)
    context, other = engine.add(ask()), engine.add(greedy([5, 6, 7], 1))
    engine.run()
    assert isinstance(engine.answers[context].error, StepFailed)
    assert engine.answers[other].error is None


def test_more_alternatives_than_fit_are_refused_by_name(load):
    engine = load("llama")
    with pytest.raises(InvalidRequest) as caught:
        engine.answer(ask(top_n=65))
    assert caught.value.field == "output_options.prompt_logprobs"


def test_a_first_choice_that_has_ended_cannot_carry_them(load):
    request = ask(n=2)
    request.resume.choices.add(index=0, finished=True)
    with pytest.raises(InvalidRequest) as caught:
        load("llama").answer(request)
    assert caught.value.field == "output_options.prompt_logprobs"


@pytest.mark.parametrize("vocab", [VOCAB, 32_000, 200_000])
@pytest.mark.parametrize("context", [2, 256, 8192, 131_072])
def test_the_longest_prompt_fits_into_a_message(vocab, context):
    limits = RequestLimits(vocab, context, kv_capacity=context)
    most, rows = limits.max_prompt_logprobs, context - 2
    assert most >= 0
    message = pb.Logprobs(
        token_logprobs=[-1.5] * rows,
        token_ranks=[vocab] * rows,
        top_n=most,
        top_token_ids=[vocab - 1] * (rows * most),
        top_logprobs=[-1.5] * (rows * most),
    )
    assert message.ByteSize() < 4 * 2**20 - 2**18
