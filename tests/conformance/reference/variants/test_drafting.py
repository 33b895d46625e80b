from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.variants.drafting import Drafting
from enginewire.conformance.session.requests import change, good_request

FORCED = [pb.LogitBias(token_id=7, bias=100.0)]


def answered(server: Reference, **changes: object) -> tuple[Job, list[pb.LLMEngineOutput]]:
    request = change(good_request("a", [5, 6, 7]), max_tokens=12, **changes)
    job = server.job("a", request.request)
    outputs: list[pb.LLMEngineOutput] = []
    while job.open_choices:
        outputs.append(server.advance(job.choices[0]))
    return job, outputs


def whole(outputs: list[pb.LLMEngineOutput]) -> pb.LLMEngineOutput:
    one = pb.LLMEngineOutput()
    for output in outputs:
        one.MergeFrom(output)
    one.ClearField("first_output_position")
    one.ClearField("completion_usage")
    one.text = "".join(output.text for output in outputs)
    return one


def test_drafts_give_the_same_answer_in_fewer_steps() -> None:
    _, plain = answered(Reference(), logit_bias=FORCED, logprobs=2)
    server = Drafting()
    job, drafted = answered(server, logit_bias=FORCED, logprobs=2)
    assert whole(drafted) == whole(plain)
    assert len(drafted) < len(plain)
    accepted = server.usage(job).completion_tokens_details.accepted_prediction_tokens
    assert accepted == len(plain) - len(drafted)


def test_what_is_not_foretold_comes_alone() -> None:
    _, drafted = answered(Drafting())
    assert len(drafted) == 12
    assert not drafted[-1].completion_usage.completion_tokens_details.accepted_prediction_tokens
