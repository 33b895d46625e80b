"""Output that is computed again, after a preemption or by another engine, is computed as it was decoded.

In bfloat16 the rounding of prompts is so far from that of decodes that most answers would go on otherwise.
"""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from enginewire import v1 as pb
from enginewire.server.demo_model import PATH
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.long import long_but
from tests.torch_engine.tiny import Answer, CoreUnderTest

N, LENGTH = 3, 48
DTYPES = pytest.mark.parametrize("dtype", long_but(["bfloat16"], ["float32", "bfloat16"]))


def load_demo(dtype: str, **options: object) -> CoreUnderTest:
    """The demo model with default options, but for these."""
    chosen = TorchEngineOptions(model=str(PATH), device="cpu", dtype=dtype, num_threads=1, **options)
    loaded = load_engine(chosen, lambda phase, done: None)
    return CoreUnderTest(loaded, prefix_caching=chosen.enable_prefix_caching)


@cache
def two_engines(dtype: str, prefix_caching: bool) -> tuple[CoreUnderTest, CoreUnderTest]:
    """Loaded once for all seeds: what they have cached may not show."""
    options = {"enable_prefix_caching": prefix_caching}
    return load_demo(dtype, **options), load_demo(dtype, **options)


def asking(random: Random, **sampling: object) -> pb.PreprocessedRequest:
    return pb.PreprocessedRequest(
        token_ids=random.choices(range(3, 1536), k=random.randint(1, 90)),
        sampling_options=pb.SamplingOptions(n=N, seed=random.randrange(1000), **sampling),
        stop_conditions=pb.StopConditions(max_tokens=LENGTH, ignore_eos=True),
        output_options=pb.OutputOptions(logprobs=3),
    )


def some_sampling(random: Random) -> dict[str, object]:
    drawn = {"temperature": 1.0, "top_p": random.choice([1.0, 0.9])}
    penalties = {"repetition_penalty": 1.2, "presence_penalty": 0.2, "frequency_penalty": 0.1}
    return random.choice([{"temperature": 0.0}, drawn, {**drawn, **penalties}])


def tokens(answer: Answer) -> list[list[int]]:
    assert answer.error is None
    return [answer.tokens[index] for index in range(N)]


@DTYPES
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("seed", long_but([0], range(4)))
def test_an_answer_goes_on_with_the_same_tokens_at_another_engine(seed, prefix_caching, dtype):
    random = Random(seed)
    lost, other = two_engines(dtype, prefix_caching)
    for _ in range(3):
        request = asking(random, **some_sampling(random))
        answer = lost.answer(request)
        whole = tokens(answer)
        assert [len(each) for each in whole] == [LENGTH] * N
        cuts = random.choices(range(LENGTH), k=N)
        for index, cut in enumerate(cuts):
            request.resume.choices.add(index=index, generated_token_ids=whole[index][:cut])
        rest = [each[cut:] for each, cut in zip(whole, cuts, strict=True)]
        assert tokens(other.answer(request)) == rest, (seed, cuts)


@DTYPES
def test_an_answer_that_was_preempted_goes_on_with_the_same_tokens(dtype):
    roomy, tight = load_demo(dtype), load_demo(dtype, num_kv_blocks=20, max_model_len=320)
    requests = [asking(Random(seed), **some_sampling(Random(seed))) for seed in range(4)]
    contexts = [tight.add(request) for request in requests]
    tight.run()
    assert tight.core.scheduler.num_preemptions > 0
    for context, request in zip(contexts, requests, strict=True):
        assert tokens(tight.answers[context]) == tokens(roomy.answer(request))
