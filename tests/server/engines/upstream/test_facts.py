"""What the server says of the engine behind it."""

from __future__ import annotations

import logging

import pytest

from enginewire import v1 as pb
from enginewire.server.engines.upstream.facts import CARRIED, OWN, NotBare, config_of

NOT_CARRIED = {
    *("guided_modes", "lora", "prefix_cache", "kv_events", "embeddings", "priority", "data_parallel"),
    "tokenizer",
}


def made(**config: object) -> pb.GetEngineInfoResponse:
    return pb.GetEngineInfoResponse(config=pb.EngineConfig(model="m", vocab_size=10, **config))


def test_every_capability_of_the_contract_is_carried_or_not_on_purpose() -> None:
    assert {field.name for field in pb.Capabilities.DESCRIPTOR.fields} == CARRIED | OWN | NOT_CARRIED


def test_what_is_carried_is_as_the_engine_says_it_and_the_rest_is_told(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    theirs = pb.Capabilities(seed=True, logprobs=True, lora=True, multiplexed=True, annotations=["a"])
    theirs.default_sampling.temperature = 0.5
    ours = config_of(made(capabilities=theirs), 4).capabilities
    assert (ours.seed, ours.logprobs, ours.lora, ours.multiplexed) == (True, True, False, False)
    assert (list(ours.annotations), ours.default_sampling.temperature) == (["a"], 0.5)
    assert "the engine's lora cannot be served" in caplog.text


def test_an_engine_without_defaults_draws_from_its_own_distribution() -> None:
    default = config_of(made(), 4).capabilities.default_sampling
    assert default == pb.SamplingDefaults(temperature=1.0, top_p=1.0, repetition_penalty=1.0)


def test_a_request_has_no_more_choices_than_there_are_slots() -> None:
    assert config_of(made(max_num_seqs=8), 4).limits.max_n == 8
    assert config_of(made(), 4).limits.max_n == 4
    assert config_of(made(max_num_seqs=1000), 4).limits.max_n == 128
    assert config_of(made(max_num_seqs=8, limits=pb.Limits(max_n=2)), 4).limits.max_n == 2


def test_limits_of_a_server_are_not_those_of_the_engine() -> None:
    theirs = pb.Limits(max_request_bytes=7, max_num_queued_reqs=7, max_logit_bias=7, max_loras=7)
    assert config_of(made(limits=theirs), 4).limits == pb.Limits(max_logit_bias=7, max_n=4)


def test_another_role_is_not_bare() -> None:
    with pytest.raises(NotBare, match="ENGINE_ROLE_DECODE"):
        config_of(made(role=pb.ENGINE_ROLE_DECODE), 4)
