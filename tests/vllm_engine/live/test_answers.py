"""What vLLM answers, beside the torch engine on the same weights."""

from __future__ import annotations

import uuid

import grpc
import pytest
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.server.demo_model import PATH, questions
from tests.vllm_engine.live.conftest import Server

TOKENS = 48
PATIENCE_SECONDS = 120.0


def prompt_of(question: str) -> list[int]:
    text = f"{question}\n"
    return Tokenizer.from_file(str(PATH / "tokenizer.json")).encode(text, add_special_tokens=False).ids


def connection(server: Server) -> grpc.Channel:
    """To be closed."""
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(server.target, options=options)


def outputs(server: Server, request: pb.PreprocessedRequest) -> list[pb.LLMEngineOutput]:
    """Everything that is answered to a request."""
    with connection(server) as channel:
        asked = pb.GenerateRequest(request_id=uuid.uuid4().hex, request=request)
        stub = pb.EngineServiceStub(channel)
        return [each.output for each in stub.Generate(asked, timeout=PATIENCE_SECONDS)]


def request(question: str, **sampling: float) -> pb.PreprocessedRequest:
    made = pb.PreprocessedRequest(token_ids=prompt_of(question))
    made.stop_conditions.max_tokens = TOKENS
    made.sampling_options.CopyFrom(pb.SamplingOptions(**{"temperature": 0.0, **sampling}))
    return made


def text_of(made: list[pb.LLMEngineOutput]) -> str:
    return Tokenizer.from_file(str(PATH / "tokenizer.json")).decode(tokens_of(made))


def tokens_of(made: list[pb.LLMEngineOutput], index: int = 0) -> list[int]:
    return [token_id for output in made if output.index == index for token_id in output.token_ids]


@pytest.mark.parametrize("question", list(questions())[::60])
def test_greedy_tokens_and_their_end_are_those_of_the_torch_engine(vllm, torch, question):
    ours, theirs = outputs(torch, request(question)), outputs(vllm, request(question))
    assert tokens_of(theirs) == tokens_of(ours)
    assert theirs[-1].finish_reason == ours[-1].finish_reason
    assert theirs[-1].completion_usage.completion_tokens == len(tokens_of(ours))


def test_log_probabilities_are_those_of_the_torch_engine(vllm, torch):
    asked = request("Who are you?")
    asked.output_options.logprobs = 3
    asked.output_options.prompt_logprobs = 2
    ours, theirs = outputs(torch, asked), outputs(vllm, asked)
    for mine, other in zip(ours, theirs, strict=True):
        assert other.logprobs.token_logprobs == pytest.approx(mine.logprobs.token_logprobs, abs=1e-3)
        assert other.logprobs.top_token_ids[0] == mine.logprobs.top_token_ids[0]
    mine, other = ours[0].prompt_logprobs.logprobs, theirs[0].prompt_logprobs.logprobs
    assert other.token_logprobs == pytest.approx(mine.token_logprobs, abs=1e-3)
    assert other.token_ranks == mine.token_ranks


def test_log_probabilities_beside_a_grammar_are_those_of_the_torch_engine(vllm, torch):
    """They are the model's own: the mask of the grammar is not in them."""
    asked = request("Who are you?")
    asked.sampling_options.guided_decoding.regex = "[0-9]{4}"
    asked.output_options.logprobs = 3
    ours, theirs = outputs(torch, asked), outputs(vllm, asked)
    assert text_of(theirs).isdigit()
    for mine, other in zip(ours, theirs, strict=True):
        assert other.token_ids == mine.token_ids
        assert other.logprobs.token_logprobs == pytest.approx(mine.logprobs.token_logprobs, abs=1e-3)
        assert other.logprobs.token_ranks == mine.logprobs.token_ranks
        assert other.logprobs.top_token_ids[0] == mine.logprobs.top_token_ids[0]


def test_a_seed_gives_the_same_choices_again_and_different_ones_side_by_side(vllm):
    asked = request("Hello", temperature=2.0, seed=7, n=3)
    first, second = outputs(vllm, asked), outputs(vllm, asked)
    found = [tokens_of(first, index) for index in range(3)]
    assert found == [tokens_of(second, index) for index in range(3)]
    assert len({tuple(tokens) for tokens in found}) == 3


def test_a_high_temperature_is_hotter_than_the_most_that_vllm_takes(vllm):
    """At 100 all ids are nearly equally likely: 48 of 1536 are hardly ever repeated."""
    found = tokens_of(outputs(vllm, request("Hello", temperature=100.0, seed=1)))
    assert len(set(found)) > 0.9 * len(found)


@pytest.mark.parametrize(
    ("stops", "texts"),
    [
        (pb.StopConditions(), {"yes", "no"}),
        (pb.StopConditions(ignore_eos=True), {"yes", "no"}),
        (pb.StopConditions(min_tokens=20), {"yes", "no"}),
    ],
)
def test_a_grammar_ends_where_nothing_more_is_allowed(vllm, stops, texts):
    asked = request("Who are you?")
    asked.stop_conditions.MergeFrom(stops)
    asked.sampling_options.guided_decoding.regex = "(yes|no)"
    made = outputs(vllm, asked)
    assert text_of(made) in texts
    assert made[-1].finish_reason == pb.FINISH_REASON_EOS


def test_a_grammar_that_may_go_on_does_so_until_it_may_end(vllm):
    asked = request("Who are you?")
    asked.stop_conditions.min_tokens = 12
    asked.sampling_options.guided_decoding.regex = "[0-9]+"
    made = outputs(vllm, asked)
    assert made[-1].completion_usage.completion_tokens >= 12
    assert text_of(made).isdigit()


def test_where_nothing_but_stops_may_be_chosen_the_first_that_may_end_the_choice_does(vllm):
    asked = request("Who are you?")
    asked.stop_conditions.stop_token_ids[:] = [5, 6]
    asked.stop_conditions.min_tokens = 4
    asked.sampling_options.allowed_token_ids[:] = [5, 6]
    made = outputs(vllm, asked)
    assert set(tokens_of(made)) <= {5, 6}
    assert made[-1].completion_usage.completion_tokens == 4
    assert made[-1].stop_match.token_id == tokens_of(made)[-1]


def test_without_a_temperature_a_model_that_does_not_sample_is_greedy(vllm):
    bare = pb.PreprocessedRequest(token_ids=prompt_of("Who are you?"))
    bare.stop_conditions.max_tokens = TOKENS
    assert tokens_of(outputs(vllm, bare)) == tokens_of(outputs(vllm, request("Who are you?")))
