from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.bench.grpc_targets import backend_request_of, check_finish, pieces_of
from enginewire.backend.bench.options import BenchOptions
from enginewire.backend.bench.timeline import Delivery, Failed, Used
from enginewire.backend.bench.workload import Job
from enginewire.backend.engines.stream import Chunk

OPTIONS = BenchOptions(model="m", temperature=0.5, ignore_eos=False)


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (Job(5, text="hi"), "text"),
        (Job(5, token_ids=(1, 2)), "token_ids"),
        (Job(5, messages=(("user", "hi"),)), "chat"),
    ],
)
def test_a_backend_gets_every_kind_of_prompt(job: Job, kind: str) -> None:
    asked = backend_request_of(job, OPTIONS)
    assert asked.WhichOneof("prompt") == kind
    assert (asked.request.model, asked.request.sampling_options.temperature) == ("m", 0.5)
    assert (asked.request.stop_conditions.max_tokens, asked.request.stop_conditions.ignore_eos) == (5, False)


@pytest.mark.parametrize("reason", [pb.FINISH_REASON_ERROR, pb.FINISH_REASON_CANCELLED])
def test_a_choice_without_a_normal_end_is_a_failure(reason: pb.FinishReason.ValueType) -> None:
    with pytest.raises(Failed, match="out of memory"):
        pieces_of(pb.BackendOutput(finish_reason=reason, error_message="out of memory"))
    output = pb.LLMEngineOutput(finish_reason=reason)
    with pytest.raises(Failed, match=pb.FinishReason.Name(reason)):
        check_finish([Chunk(0, 0, [1]), Chunk(0, 1, [], output)])


def test_an_output_tells_its_tokens_and_the_last_one_the_usage() -> None:
    assert pieces_of(pb.BackendOutput(token_ids=[1, 2])) == [Delivery(2)]
    usage = pb.CompletionUsage(prompt_tokens=3, completion_tokens=4)
    last = pb.BackendOutput(finish_reason=pb.FINISH_REASON_EOS, completion_usage=usage)
    assert pieces_of(last) == [Delivery(0), Used(3, 4)]
