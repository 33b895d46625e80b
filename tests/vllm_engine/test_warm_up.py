"""The first request of a life."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.server.validation.generate import check_preprocessed
from enginewire.vllm_engine.warm_up import warm_up_request


@pytest.mark.parametrize("with_more", [False, True])
def test_it_is_a_valid_request_of_an_engine_that_advertises_much_or_little(with_more: bool) -> None:
    config = pb.EngineConfig(context_length=64, vocab_size=100, role=pb.ENGINE_ROLE_AGGREGATED)
    always = {"seed": True, "penalties": True, "bad_words": True, "logprobs": True}
    more = dict.fromkeys(("min_p", "logit_bias", "prompt_logprobs"), with_more)
    config.capabilities.CopyFrom(pb.Capabilities(**always, **more))
    check_preprocessed(warm_up_request(config), config)
