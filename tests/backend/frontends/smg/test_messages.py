from __future__ import annotations

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.frontends.smg.answer import Answer
from enginewire.backend.frontends.smg.request import to_backend


def params(**given: object) -> pb.PreprocessedRequest:
    """What the backend is asked for."""
    asked = vllm.GenerateRequest(
        tokenized=vllm.TokenizedInput(input_ids=[1]), sampling_params=vllm.SamplingParams(**given)
    )
    return to_backend(asked).request


def test_every_parameter_finds_its_field() -> None:
    request = params(
        temperature=0.0, top_p=0.5, top_k=3, min_p=0.25, frequency_penalty=1, presence_penalty=2,
        repetition_penalty=1.5, n=2, min_tokens=4, max_tokens=5, stop=["x"], stop_token_ids=[7],
        ignore_eos=True, include_stop_str_in_output=True, skip_special_tokens=True, seed=-1, logprobs=0,
        logit_bias={9: -1.0, 3: 2.0},
    )  # fmt: skip
    assert request.sampling_options == pb.SamplingOptions(
        temperature=0.0, top_p=0.5, top_k=3, min_p=0.25, frequency_penalty=1, presence_penalty=2,
        repetition_penalty=1.5, n=2, include_stop_str_in_output=True, seed=2**64 - 1,
        logit_bias=[pb.LogitBias(token_id=3, bias=2.0), pb.LogitBias(token_id=9, bias=-1.0)],
    )  # fmt: skip
    assert request.stop_conditions == pb.StopConditions(
        min_tokens=4, max_tokens=5, stop=["x"], stop_token_ids=[7], ignore_eos=True
    )
    assert request.output_options == pb.OutputOptions(skip_special_tokens=True, logprobs=0)


def test_what_is_not_set_is_left_to_the_engine() -> None:
    request = params()
    assert request.sampling_options == pb.SamplingOptions()
    assert request.stop_conditions == pb.StopConditions()
    assert request.output_options == pb.OutputOptions(skip_special_tokens=False)


@pytest.mark.parametrize(
    ("given", "guide"),
    [
        ({"json_schema": "{}"}, pb.GuidedDecoding(json_schema="{}")),
        ({"regex": "a+"}, pb.GuidedDecoding(regex="a+")),
        ({"grammar": "root ::= x"}, pb.GuidedDecoding(ebnf_grammar="root ::= x")),
        ({"structural_tag": "{}"}, pb.GuidedDecoding(structural_tag="{}")),
        ({"json_object": True}, pb.GuidedDecoding(json_object=True)),
        (
            {"choice": vllm.ChoiceConstraint(choices=["a", "b"])},
            pb.GuidedDecoding(choice=pb.GuidedChoice(choices=["a", "b"])),
        ),
    ],
)
def test_every_grammar_finds_its_guide(given: dict[str, object], guide: pb.GuidedDecoding) -> None:
    assert params(**given).sampling_options.guided_decoding == guide


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (pb.FINISH_REASON_EOS, "stop"),
        (pb.FINISH_REASON_STOP, "stop"),
        (pb.FINISH_REASON_LENGTH, "length"),
        (pb.FINISH_REASON_CANCELLED, "abort"),
    ],
)
def test_every_end_has_its_word(reason: pb.FinishReason.ValueType, word: str) -> None:
    output = BackendOutput(token_ids=[5], finish_reason=reason)
    (response,) = Answer(1, is_stream=False).responses(output)
    assert response.complete.finish_reason == word


def test_cached_tokens_come_with_the_usage() -> None:
    usage = pb.CompletionUsage(prompt_tokens_details=pb.PromptTokensDetails(cached_tokens=3))
    output = BackendOutput(finish_reason=pb.FINISH_REASON_EOS, completion_usage=usage)
    (response,) = Answer(4, is_stream=True).responses(output)
    assert response.complete.cached_tokens == 3
