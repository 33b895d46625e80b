import pytest

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import (
    Annotated,
    BackendOutput,
    Failure,
    annotated_from_proto,
    annotated_to_proto,
    first_rows,
)


def logprobs() -> pb.Logprobs:
    return pb.Logprobs(
        token_logprobs=[-1, -2, -3],
        token_ranks=[1, 2, 3],
        top_n=2,
        top_token_ids=[1, 2, 3, 4, 5, 6],
        top_logprobs=[-1, -2, -3, -4, -5, -6],
        selected_logprobs=[-7, -8, -9],
    )


FULL = BackendOutput(
    token_ids=[1, 2, 3],
    tokens=["a", "b", "c"],
    text="abc",
    index=1,
    first_output_position=4,
    finish_reason=pb.FINISH_REASON_STOP,
    stop_reason="c",
    cum_log_probs=-6.0,
    logprobs=logprobs(),
    prompt_logprobs=pb.PromptLogprobs(logprobs=logprobs()),
    completion_usage=pb.CompletionUsage(prompt_tokens=1),
    prefill_handoff=pb.PrefillHandoff(params=b"p"),
    engine_data=b"{}",
    error_message="no",
)


@pytest.mark.parametrize("output", [FULL, BackendOutput(token_ids=[]), BackendOutput([0], stop_reason=0)])
def test_an_output_survives_the_wire(output: BackendOutput) -> None:
    copy = BackendOutput.from_proto(pb.BackendOutput.FromString(output.to_proto().SerializeToString()))
    assert copy == output


def test_every_field_of_the_message_has_a_place_in_the_value() -> None:
    assert {field.name for field, _ in FULL.to_proto().ListFields()} == {
        field.name for field in pb.BackendOutput.DESCRIPTOR.fields
    }


@pytest.mark.parametrize(
    "item",
    [
        Annotated(data=FULL, id="7"),
        Annotated[BackendOutput](event="migrated", comment=("to another engine",)),
        Annotated[BackendOutput](
            error=Failure(14, pb.ERROR_REASON_STREAM_INCOMPLETE, "stream ended", retryable=True)
        ),
    ],
)
def test_an_item_survives_the_wire(item: Annotated[BackendOutput]) -> None:
    message = pb.Annotated.FromString(annotated_to_proto(item).SerializeToString())
    assert annotated_from_proto(message) == item


def test_a_status_without_detail_is_an_internal_failure() -> None:
    failure = Failure.from_proto(pb.Status(code=13, message="broken"))
    assert failure == Failure(13, pb.ERROR_REASON_INTERNAL, "broken", retryable=False)


def test_logprobs_are_readable_row_by_row() -> None:
    assert FULL.log_probs == [-1, -2, -3]
    assert FULL.top_logprobs == [[(1, -1), (2, -2)], [(3, -3), (4, -4)], [(5, -5), (6, -6)]]
    assert BackendOutput().top_logprobs == BackendOutput().log_probs == []


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3])
def test_first_rows_cuts_every_column(num_rows: int) -> None:
    cut = first_rows(logprobs(), num_rows)
    assert len(cut.token_logprobs) == len(cut.token_ranks) == len(cut.selected_logprobs) == num_rows
    assert len(cut.top_token_ids) == len(cut.top_logprobs) == 2 * num_rows
