"""--speculative-config: what it may say, and what is said when it says something else."""

from __future__ import annotations

import json

import pytest

from enginewire.server.config.options import ServerOptions
from enginewire.server.load_engine import EngineUnavailable, make_engine
from enginewire.torch_engine.options import SpeculativeConfig
from tests.torch_engine.tiny import greedy

SOUND = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("lookup", "lengths"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4)),
    ],
)
def test_one_length_stands_for_both_and_none_for_five(lookup, lengths):
    assert SpeculativeConfig.from_json(json.dumps(SOUND | lookup)).lookup == lengths


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"num_speculative_tokens": 3}', "method is missing"),
        ('{"method": "ngram"}', "num_speculative_tokens is missing"),
        (json.dumps(SOUND | {"method": "eagle"}), "method must be ngram, not 'eagle'"),
        (json.dumps(SOUND | {"model": "x"}), "no key 'model'; there are num_speculative_tokens, method,"),
        (json.dumps(SOUND | {"num_speculative_tokens": True}), "a number from 1 to 64, not True"),
        (json.dumps(SOUND | {"num_speculative_tokens": 0}), "a number from 1 to 64, not 0"),
        (json.dumps(SOUND | {"num_speculative_tokens": 65}), "a number from 1 to 64, not 65"),
        (json.dumps(SOUND | {"num_speculative_tokens": None}), "a number from 1 to 64, not None"),
        (json.dumps(SOUND | {"num_speculative_tokens": 2.0}), "a number from 1 to 64, not 2.0"),
        (json.dumps(SOUND | {"prompt_lookup_max": "4"}), "prompt_lookup_max must be a number"),
        (json.dumps(SOUND | {"prompt_lookup_min": 0}), "prompt_lookup_min must be a number"),
        (
            json.dumps(SOUND | {"prompt_lookup_min": 4, "prompt_lookup_max": 3}),
            "must not be above prompt_lookup_max, 3",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(text, said):
    with pytest.raises(EngineUnavailable) as refused:
        make_engine(ServerOptions(speculative_config=text))
    assert "speculative_config" in str(refused.value)
    assert said in str(refused.value)


def test_without_the_option_nothing_is_drafted(load):
    engine = load("llama")
    answer = engine.answer(greedy([4, 5] * 8, 12))
    assert engine.core.scheduler.drafting is None
    assert engine.core.statistics.drafts is None
    assert not answer.terminals[0].completion_usage.HasField("completion_tokens_details")


def test_with_it_a_far_device_gets_no_step_before_the_last_one_is_read(far):
    config = SpeculativeConfig(3, prompt_lookup_max=1)
    assert far("llama").core._runs_ahead
    assert not far("llama", speculative_config=config).core._runs_ahead
