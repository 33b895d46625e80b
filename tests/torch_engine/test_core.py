"""One request's life in the core: stops, usage, resume, log-probabilities, failures."""

from __future__ import annotations

import pytest
import torch

from enginewire import v1 as pb
from enginewire.server.failures import DeadlineExceeded, InvalidRequest, StepFailed
from enginewire.torch_engine.sampling.sampler import Choice
from tests.torch_engine.tiny import Answer, greedy

PROMPT = [5, 9, 33, 7, 100, 12]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "repetition_penalty": 1.2, "frequency_penalty": 0.3}


def stopping(prompt=PROMPT, **stop: object) -> pb.PreprocessedRequest:
    return pb.PreprocessedRequest(
        token_ids=prompt,
        sampling_options=pb.SamplingOptions(temperature=0.0),
        stop_conditions=pb.StopConditions(**stop),
    )


def sampled(max_tokens: int, n: int = 1, **stop: object) -> pb.PreprocessedRequest:
    return pb.PreprocessedRequest(
        token_ids=PROMPT,
        sampling_options=pb.SamplingOptions(**SAMPLED, n=n),
        stop_conditions=pb.StopConditions(max_tokens=max_tokens, **stop),
    )


def only_terminal(answer: Answer) -> pb.LLMEngineOutput:
    assert answer.error is None
    assert len(answer.terminals) == 1
    return answer.terminals[0]


def usage(answer: Answer) -> tuple[int, int, int]:
    found = answer.terminals[-1].completion_usage
    return found.prompt_tokens, found.completion_tokens, found.total_tokens


@pytest.fixture
def engine(load):
    return load("llama")


@pytest.fixture
def plain(expected):
    """The first tokens of the greedy continuation; no two of the first four are equal."""
    tokens = expected("llama", PROMPT, 12)
    assert len(set(tokens[:4])) == 4
    return tokens


@pytest.mark.parametrize("field", ["stop_token_ids", "stop_token_ids_visible"])
def test_a_stop_token_of_the_caller_ends_with_stop_and_is_named(engine, plain, field):
    terminal = only_terminal(answer := engine.answer(stopping(max_tokens=12, **{field: [plain[3]]})))
    assert answer.tokens[0] == plain[:4]
    assert terminal.finish_reason == pb.FINISH_REASON_STOP
    assert terminal.stop_match.token_id == plain[3]
    assert terminal.completion_usage.completion_tokens == 4


def test_an_end_of_sequence_id_of_the_request_ends_with_eos(engine, plain):
    request = stopping(max_tokens=12)
    request.eos_token_ids.append(plain[2])
    terminal = only_terminal(answer := engine.answer(request))
    assert answer.tokens[0] == plain[:3]
    assert terminal.finish_reason == pb.FINISH_REASON_EOS
    assert not terminal.HasField("stop_match")


def test_hidden_stops_end_with_eos_unless_eos_is_ignored(engine, plain):
    hidden = {"stop_token_ids_hidden": [plain[1]], "max_tokens": 5}
    assert only_terminal(engine.answer(stopping(**hidden))).finish_reason == pb.FINISH_REASON_EOS
    ignoring = engine.answer(stopping(**hidden, ignore_eos=True))
    assert ignoring.tokens[0] == plain[:5]
    assert only_terminal(ignoring).finish_reason == pb.FINISH_REASON_LENGTH


def test_min_tokens_holds_every_stop_back(engine, plain):
    answer = engine.answer(stopping(max_tokens=12, min_tokens=6, stop_token_ids=[plain[3]]))
    assert answer.tokens[0][:3] == plain[:3]
    assert plain[3] not in answer.tokens[0][:5]
    assert len(answer.tokens[0]) >= 6


@pytest.mark.parametrize("min_tokens", [0, 1, 3, 4])
def test_the_token_that_reaches_min_tokens_may_end_the_choice(engine, plain, min_tokens):
    answer = engine.answer(stopping(max_tokens=12, min_tokens=min_tokens, stop_token_ids=[plain[3]]))
    assert answer.tokens[0] == plain[:4]
    assert only_terminal(answer).finish_reason == pb.FINISH_REASON_STOP


def test_without_max_tokens_a_choice_ends_with_the_context(engine):
    answer = engine.answer(stopping(prompt=[4] * 250, ignore_eos=True))
    assert len(answer.tokens[0]) == 6
    assert only_terminal(answer).finish_reason == pb.FINISH_REASON_LENGTH


def test_a_probe_needs_only_tokens(engine):
    answer = engine.answer(pb.PreprocessedRequest(token_ids=PROMPT, is_probe=True))
    assert len(answer.tokens[0]) == 1


@pytest.mark.parametrize("cut", [0, 1, 7, 23])
def test_a_resumed_request_continues_token_exact(engine, cut):
    whole = engine.answer(sampled(24, min_tokens=20, stop_token_ids=[3]))
    request = sampled(24, min_tokens=20, stop_token_ids=[3])
    request.resume.choices.add(index=0, generated_token_ids=whole.tokens[0][:cut])
    rest = engine.answer(request)
    assert whole.tokens[0][:cut] + rest.tokens[0] == whole.tokens[0]
    assert rest.outputs[-1].first_output_position == len(whole.tokens[0]) - 1
    assert usage(rest) == usage(whole) == (6, 24, 30)


def test_a_resumed_choice_that_was_complete_ends_at_once_without_tokens(engine, plain):
    request = stopping(max_tokens=12, stop_token_ids=[plain[3]])
    request.resume.choices.add(index=0, generated_token_ids=plain[:4])
    terminal = only_terminal(engine.answer(request))
    assert (terminal.finish_reason, list(terminal.token_ids)) == (pb.FINISH_REASON_STOP, [])
    assert terminal.first_output_position == 4
    assert terminal.completion_usage.completion_tokens == 4


def test_a_finished_choice_is_not_generated_again(engine):
    whole = engine.answer(sampled(10, n=2))
    request = sampled(10, n=2)
    request.resume.choices.add(index=0, generated_token_ids=whole.tokens[0], finished=True)
    rest = engine.answer(request)
    assert dict(rest.tokens) == {1: whole.tokens[1]}
    assert len(rest.terminals) == 1
    assert usage(rest) == usage(whole)


def test_seeded_choices_differ_and_do_not_depend_on_the_batch(load):
    engine = load("llama")
    alone = engine.answer(sampled(15, n=3)).tokens
    contexts = [engine.add(greedy(PROMPT[:2], 30)), engine.add(sampled(15, n=3)), engine.add(sampled(40))]
    engine.run()
    assert engine.answers[contexts[1]].tokens == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    small = load("llama", num_kv_blocks=8, block_size=4, max_model_len=32, max_num_batched_tokens=8)
    assert small.answer(sampled(15, n=3)).tokens == alone
    assert small.core.scheduler.num_preemptions > 0


def test_logprobs_come_in_columns_and_add_up(engine, oracle):
    request = greedy(PROMPT, 5)
    request.output_options.logprobs = 2
    answer = engine.answer(request)
    rows = [logprobs.token_logprobs[0] for logprobs in answer.logprobs]
    with torch.no_grad():
        logits = oracle("llama")(torch.tensor([PROMPT + answer.tokens[0]])).logits[0]
    scores = logits[len(PROMPT) - 1 : -1].log_softmax(-1)
    assert rows == pytest.approx(scores.max(-1).values.tolist(), abs=1e-4)
    assert [list(row.top_token_ids) for row in answer.logprobs] == scores.topk(2).indices.tolist()
    assert {row.top_n for row in answer.logprobs} == {2}
    assert {row.token_ranks[0] for row in answer.logprobs} == {1}
    assert answer.outputs[-1].cum_log_probs == pytest.approx(sum(rows), abs=1e-5)


def test_a_deadline_fails_a_request_that_runs_or_waits(load):
    engine = load("llama", max_num_seqs=1)
    running = engine.add(greedy(PROMPT, 200), deadline=float("inf"))
    waiting = engine.add(greedy(PROMPT, 5), deadline=0.0)
    engine.step()
    assert isinstance(engine.answers[waiting].error, DeadlineExceeded)
    assert not engine.answers[waiting].tokens
    engine.core.live.abort(running)
    engine.run()


def test_a_request_whose_logits_are_not_finite_ends_alone(load, expected):
    engine = load("llama")
    engine.loaded.core._runner.model.embedding[77] = float("nan")
    poisoned = engine.add(greedy([77, 4], 6, n=2))
    healthy = engine.add(greedy(PROMPT, 12))
    engine.run()
    assert isinstance(engine.answers[poisoned].error, StepFailed)
    assert engine.answers[poisoned].terminals == []
    assert engine.answers[healthy].tokens[0] == expected("llama", PROMPT, 12)


def test_a_choice_that_has_no_token_left_ends_its_siblings_in_the_same_step(load):
    engine = load("llama")
    request = pb.PreprocessedRequest(token_ids=PROMPT, stop_conditions=pb.StopConditions(max_tokens=9))
    request.sampling_options.MergeFrom(pb.SamplingOptions(n=2, temperature=1.0, allowed_token_ids=[5, 6]))
    for follower in 5, 6:
        request.sampling_options.bad_words_token_ids.add(token_ids=[5, follower])
    for seed in range(20):
        request.sampling_options.seed = seed
        answer = engine.answer(request)
        assert isinstance(answer.error, InvalidRequest)
        assert answer.error.field == "sampling_options.allowed_token_ids"
        if answer.tokens[0] == [5] and answer.tokens[1][0] == 6:
            assert answer.tokens[1] == [6]
            return
    pytest.fail("no seed lets the first choice fail before its sibling")


def test_a_poisoned_request_leaves_no_poison_in_the_blocks_it_gave_back(load, expected):
    engine = load("llama", num_kv_blocks=4, max_model_len=64)
    engine.loaded.core._runner.model.embedding[77] = float("nan")
    engine.answer(greedy([77] * 60, 4))
    contexts = [engine.add(greedy(PROMPT[:size], 12)) for size in (1, 6)]
    engine.run()
    for context, size in zip(contexts, (1, 6), strict=True):
        assert engine.answers[context].tokens[0] == expected("llama", PROMPT[:size], 12)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_nobody_finds_what_a_request_without_finite_logits_has_computed(family, load, expected):
    engine = load(family, block_size=4)
    table, prompt = engine.loaded.core._runner.model.embedding, [77, *PROMPT * 3]
    sound = table[77].clone()
    table[77] = float("nan")
    assert isinstance(engine.answer(greedy(prompt, 4)).error, StepFailed)
    table[77] = sound
    assert engine.answer(greedy(prompt, 4)).tokens[0] == expected(family, prompt, 4)


def test_an_exception_in_the_model_fails_only_the_request_that_causes_it(load, expected, caplog, monkeypatch):
    engine = load("llama")
    runner = engine.core._runner
    forward = runner.forward

    def fragile(batch, unread):
        if any(66 in grant.sequence.token_ids for grant in batch):
            raise RuntimeError("out of something")
        return forward(batch, unread)

    monkeypatch.setattr(runner, "forward", fragile)
    bad, good = engine.add(greedy([66, 3], 9)), engine.add(greedy(PROMPT, 3))
    engine.run()
    assert isinstance(engine.answers[bad].error, StepFailed)
    assert engine.answers[good].tokens[0] == expected("llama", PROMPT, 3)
    assert "RuntimeError" in caplog.text


def test_a_request_that_fails_alone_is_not_tried_again(load, monkeypatch):
    engine = load("llama")
    tried = []

    def fail(batch, unread):
        tried.append(len(batch))
        raise RuntimeError("out of something")

    monkeypatch.setattr(engine.core._runner, "forward", fail)
    lonely = engine.add(greedy(PROMPT, 3))
    engine.run()
    assert isinstance(engine.answers[lonely].error, StepFailed)
    assert tried == [1]


def test_a_request_whose_choices_fail_together_fails_once_and_alone(load, expected, monkeypatch):
    engine = load("llama")
    runner = engine.core._runner
    forward, tried = runner.forward, []

    def fragile(batch, unread):
        guilty = [grant for grant in batch if grant.sequence.token_ids[:2] == [66, 3]]
        tried.append((len(batch), len(guilty)))
        if any(len(grant.sequence.token_ids) > 3 for grant in guilty):
            raise RuntimeError("out of something")
        return forward(batch, unread)

    monkeypatch.setattr(runner, "forward", fragile)
    bad, good = engine.add(greedy([66, 3], 9, n=2)), engine.add(greedy(PROMPT, 6))
    engine.run()
    assert isinstance(engine.answers[bad].error, StepFailed)
    assert engine.answers[good].tokens[0] == expected("llama", PROMPT, 6)
    # One of its choices is tried alone; the other has ended with it.
    assert tried.count((1, 1)) == 1
    assert (3, 2) in tried


def test_a_lost_device_ends_the_engine_and_not_one_request_after_the_other(load, monkeypatch):
    engine = load("llama")

    def fail(*_: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(engine.core._runner, "forward", fail)
    monkeypatch.setattr(engine.core._runner, "check", fail)
    contexts = [engine.add(greedy(PROMPT[:size], 5)) for size in (2, 3)]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.step()
    assert engine.core.live.contexts == contexts


def test_a_device_that_is_found_lost_while_tokens_are_read_ends_the_engine(load, monkeypatch):
    engine = load("llama")
    context = engine.add(greedy(PROMPT, 20))
    engine.step()
    monkeypatch.setattr(Choice, "read", lambda _: [][0])
    monkeypatch.setattr(engine.core._runner, "check", lambda: {}["lost"])
    with pytest.raises(KeyError, match="lost"):
        engine.step()
    assert engine.core.live.contexts == [context]


def test_random_traffic_with_aborts_leaves_nothing_behind(load):
    engine = load("qwen3", num_kv_blocks=20, block_size=4, max_model_len=64, max_num_batched_tokens=11)
    rng = torch.Generator().manual_seed(1)
    for _ in range(60):
        length, output, action = torch.randint(1, 30, (3,), generator=rng).tolist()
        context = engine.add(greedy([length] * length, output, n=1 + action % 3))
        engine.step()
        if action % 4 == 0:
            engine.core.live.abort(context)
    engine.run()
    for answer in engine.answers.values():
        assert [out.HasField("completion_usage") for out in answer.terminals][-1]
        assert answer.terminals[-1].completion_usage.completion_tokens == sum(
            map(len, answer.tokens.values())
        )
