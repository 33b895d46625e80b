"""Answers made of what real servers have sent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.server.demo_model import PATH, questions
from tests.openai_engine.conftest import Started
from tests.openai_engine.recording import SCENARIOS, answer_of

KINDS = ("llama.cpp", "vllm")
EOS = 2


def ids_of(outputs: Sequence[pb.LLMEngineOutput], index: int = 0) -> list[int]:
    return [token_id for each in outputs if each.index == index for token_id in each.token_ids]


def text_of(ids: list[int]) -> str:
    return Tokenizer.from_file(str(PATH / "tokenizer.json")).decode(ids)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_is_the_one_that_the_model_was_taught(started: Started, kind: str):
    engine, _ = await started(kind)
    outputs = await answer_of(engine, SCENARIOS["to_its_end"])
    assert text_of(ids_of(outputs)) == questions()["Show me an emoji"]
    assert outputs[-1].finish_reason == pb.FINISH_REASON_EOS
    assert outputs[-1].completion_usage.completion_tokens == len(ids_of(outputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["plain", "emoji", "within", "logprobs", "past_its_end", "two", "seeded"])
async def test_positions_limits_and_the_one_terminal_are_as_the_contract_has_them(
    started: Started, kind: str, name: str
):
    engine, _ = await started(kind)
    outputs, request = await answer_of(engine, SCENARIOS[name]), SCENARIOS[name]
    for index in range(max(request.sampling_options.n, 1)):
        own = [each for each in outputs if each.index == index]
        assert [each.first_output_position for each in own] == list(range(len(own)))
        assert len(own) == request.stop_conditions.max_tokens
        assert [each.finish_reason for each in own if each.finish_reason] == [pb.FINISH_REASON_LENGTH]
        assert own[-1].finish_reason
    assert [each.HasField("completion_usage") for each in outputs].count(True) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_end_that_is_ignored_is_a_token_like_others(started: Started, kind: str):
    engine, _ = await started(kind)
    ids = ids_of(await answer_of(engine, SCENARIOS["past_its_end"]))
    assert EOS in ids[:-1]
    assert ids[: ids.index(EOS) + 1] == ids_of(await answer_of(engine, SCENARIOS["to_its_end"]))


async def test_both_servers_give_the_same_greedy_tokens(started: Started):
    engines = [(await started(kind))[0] for kind in KINDS]
    for name in ("plain", "emoji", "within", "two", "past_its_end"):
        llama, vllm = [await answer_of(engine, SCENARIOS[name]) for engine in engines]
        assert ids_of(llama) == ids_of(vllm)


@pytest.mark.parametrize("kind", KINDS)
async def test_log_probabilities_are_there_for_every_token(started: Started, kind: str):
    engine, _ = await started(kind)
    outputs = await answer_of(engine, SCENARIOS["logprobs"])
    assert ids_of(outputs) == ids_of(await answer_of(engine, SCENARIOS["emoji"]))
    total = 0.0
    for each in outputs:
        [value], top = each.logprobs.token_logprobs, list(each.logprobs.top_logprobs)
        assert each.logprobs.top_token_ids[0] == each.token_ids[0]
        assert value == pytest.approx(top[0])
        assert len(top) == 2
        assert top == sorted(top, reverse=True)
        assert math.exp(top[0]) + math.exp(top[1]) <= 1.001
        total += value
        assert each.cum_log_probs == pytest.approx(total, abs=1e-4)


async def test_tokens_that_a_stream_leaves_out_are_asked_for_again(started: Started):
    engine, server = await started("llama.cpp")
    server.bodies.clear()
    assert len(ids_of(await answer_of(engine, SCENARIOS["emoji"]))) == 12
    assert [body["stream"] for body in server.bodies] == [True, False, True]
    assert server.bodies[1]["seed"] == server.bodies[0]["seed"]


async def test_every_token_of_a_seeded_answer_has_a_seed_of_its_own(started: Started):
    engine, server = await started("llama.cpp")
    server.bodies.clear()
    await answer_of(engine, SCENARIOS["seeded"])
    seeds = [body["seed"] for body in server.bodies if body["n_predict"] == 1]
    assert len(set(seeds)) == len(seeds) == 12
    server.bodies.clear()
    await answer_of(engine, SCENARIOS["seeded"])
    assert [body["seed"] for body in server.bodies] == seeds


async def test_a_resumed_answer_goes_on_with_the_seeds_that_it_would_have_had(started: Started):
    engine, server = await started("llama.cpp")
    whole = ids_of(await answer_of(engine, SCENARIOS["seeded"]))
    resumed = pb.PreprocessedRequest()
    resumed.CopyFrom(SCENARIOS["seeded"])
    resumed.resume.choices.add(index=0, generated_token_ids=whole[:5])
    before = [body["seed"] for body in server.bodies if "seed" in body]
    outputs = await answer_of(engine, resumed)
    assert ids_of(outputs) == whole[5:]
    assert outputs[0].first_output_position == 5
    after = [body["seed"] for body in server.bodies if "seed" in body]
    assert after[len(before) :] == before[-7:]


async def test_whoever_asks_for_a_salt_ends_the_sharing_of_prompts(started: Started):
    engine, server = await started("llama.cpp")
    await answer_of(engine, SCENARIOS["plain"])
    assert server.bodies[-1]["cache_prompt"]
    salted = pb.PreprocessedRequest()
    salted.CopyFrom(SCENARIOS["plain"])
    salted.cache_salt = "mine"
    for request in (salted, SCENARIOS["plain"]):
        # Nothing like it was recorded.
        with pytest.raises(Exception, match="mistake"):
            await answer_of(engine, request)
        assert not server.bodies[-1]["cache_prompt"]


async def test_below_min_tokens_vllm_bars_nothing(started: Started):
    engine, server = await started("vllm")
    late = pb.PreprocessedRequest()
    late.CopyFrom(SCENARIOS["to_its_end"])
    late.stop_conditions.min_tokens = 20
    with pytest.raises(Exception, match="mistake"):
        await answer_of(engine, late)
    assert server.bodies[-1]["stop_token_ids"] == []
    await answer_of(engine, SCENARIOS["to_its_end"])
    assert server.bodies[-1]["stop_token_ids"] == [EOS]


async def test_vllm_is_sent_salts_that_it_takes_and_no_two_are_one(started: Started):
    engine, server = await started("vllm")
    salted = pb.PreprocessedRequest()
    salted.CopyFrom(SCENARIOS["plain"])
    sent = []
    for salt in ("a", "b", "a", "@/\\\0", "é", "x" * 10_000):
        salted.cache_salt = salt
        await answer_of(engine, salted)
        sent.append(server.bodies[-1]["cache_salt"])
    assert sent[0] == sent[2]
    assert len(set(sent)) == len(sent) - 1
    assert all(len(each) <= 128 and each.isalnum() for each in sent)


async def test_the_facts_are_those_that_the_servers_tell(started: Started):
    llama, vllm = [(await started(kind))[0].config for kind in KINDS]
    assert (llama.context_length, llama.max_num_seqs, llama.vocab_size) == (1024, 4, 1536)
    assert (vllm.context_length, vllm.vocab_size) == (1024, 1536)
    for config in (llama, vllm):
        assert list(config.eos_token_ids) == [EOS]
        assert config.limits.max_n == config.max_num_seqs
        assert config.capabilities.tokenizer
    assert llama.capabilities.resume
    assert not llama.capabilities.penalties
    assert vllm.capabilities.penalties
    assert not vllm.capabilities.resume
