from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest
from tests.server.validation.requests_to_check import Change, check, fields


def embeds(**values: object) -> Change:
    return fields(token_ids=[], prompt_embeds=pb.Tensor(**values))


def test_embeddings_are_taken_when_the_bytes_fit_the_shape() -> None:
    check(embeds(data_type=pb.DATA_TYPE_FLOAT16, shape=[3, 4], data=bytes(24)))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("prompt_embeds.data_type", embeds(shape=[1, 1], data=bytes(4))),
        ("prompt_embeds.data_type", embeds(data_type=pb.DATA_TYPE_UINT8, shape=[1, 1], data=bytes(1))),
        ("prompt_embeds.data_type", embeds(data_type=77, shape=[1, 1], data=bytes(1))),
        ("prompt_embeds.shape", embeds(data_type=pb.DATA_TYPE_FLOAT32, shape=[4], data=bytes(16))),
        ("prompt_embeds.shape", embeds(data_type=pb.DATA_TYPE_FLOAT32, shape=[0, 4])),
        ("prompt_embeds.data", embeds(data_type=pb.DATA_TYPE_FLOAT32, shape=[2, 4], data=bytes(31))),
        ("prompt_embeds.data", embeds(data_type=pb.DATA_TYPE_FLOAT32, shape=[2**63, 2**63], data=b"")),
        ("prompt_embeds.shape", embeds(data_type=pb.DATA_TYPE_FLOAT16, shape=[512, 1], data=bytes(1024))),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(field: str, change: Change) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(change)
    assert caught.value.field == field
