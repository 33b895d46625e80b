"""The less usual outputs and modes of the torch engine, over the wire and through the backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from safetensors.torch import load_file

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.server.demo_model import PATH, questions
from tests.end_to_end.test_demo_engine import ASKED, outputs_of, question, text_of, wait_idle


@pytest.fixture(params=[True, False], ids=["multiplexed", "plain"])
async def client(demo_target: str, request: pytest.FixtureRequest) -> AsyncIterator[EngineClient]:
    async with EngineClient(demo_target, multiplexed=request.param) as client:
        await client.wait_ready(60)
        yield client
        await wait_idle(client)


@pytest.fixture
async def tokenizer(client: EngineClient) -> BackendTokenizer:
    return BackendTokenizer.from_files(await client.tokenizer_files())


@pytest.fixture
def backend(client: EngineClient, tokenizer: BackendTokenizer) -> Backend:
    return Backend(client, tokenizer.vocabulary)


async def test_a_prompt_is_scored_beside_its_answer(backend: Backend, tokenizer: BackendTokenizer) -> None:
    requests = [question(tokenizer, text) for text in ASKED[:6]]
    for request in requests:
        request.output_options.prompt_logprobs = 2
    for request, text, outputs in zip(
        requests, ASKED, await asyncio.gather(*(outputs_of(backend, each) for each in requests)), strict=False
    ):
        scored = [output for output in outputs if output.prompt_logprobs is not None]
        assert scored == outputs[:1]
        rows = scored[0].prompt_logprobs.logprobs
        assert len(rows.token_logprobs) == len(request.token_ids) - 1
        assert len(rows.top_token_ids) == 2 * len(rows.token_logprobs)
        assert max(rows.token_logprobs) <= 0
        assert text_of(outputs) == questions()[text]


async def test_beams_come_best_first(backend: Backend, tokenizer: BackendTokenizer) -> None:
    request = question(tokenizer, ASKED[0])
    request.sampling_options.MergeFrom(pb.SamplingOptions(n=3, best_of=4, use_beam_search=True))
    request.output_options.logprobs = 0
    outputs = await outputs_of(backend, request)
    by_choice = [[output for output in outputs if output.index == index] for index in range(3)]
    assert text_of(by_choice[0]) == questions()[ASKED[0]], "the model is sure of its answers"
    assert len({text_of(choice) for choice in by_choice}) == 3
    scores = [_score(choice) for choice in by_choice]
    assert scores == sorted(scores, reverse=True)


def _score(choice: list[BackendOutput]) -> float:
    return choice[-1].cum_log_probs / sum(len(output.token_ids) for output in choice)


async def test_embeddings_stand_for_their_tokens(backend: Backend, tokenizer: BackendTokenizer) -> None:
    request = question(tokenizer, ASKED[1])
    (file,) = PATH.glob("*.safetensors")
    table = load_file(file)["model.embed_tokens.weight"].float()
    values = table[list(request.token_ids)].numpy()
    del request.token_ids[:]
    tensor = pb.Tensor(data_type=pb.DATA_TYPE_FLOAT32, shape=values.shape, data=values.tobytes())
    request.prompt_embeds.CopyFrom(tensor)
    outputs = await outputs_of(backend, request)
    assert text_of(outputs) == questions()[ASKED[1]]
    assert outputs[-1].completion_usage.prompt_tokens == len(values)


async def test_what_works_is_advertised_and_what_does_not_is_not(client: EngineClient) -> None:
    info = await client.info()
    capabilities = info.config.capabilities
    assert capabilities.prompt_logprobs
    assert capabilities.beam_search
    assert capabilities.prompt_embeds
    assert not capabilities.max_thinking_tokens, "the demo model has no tokens for it"
    assert info.config.limits.max_prompt_logprobs > 0
