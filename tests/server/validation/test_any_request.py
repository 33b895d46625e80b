"""Validation of whatever may arrive: the answer is yes, or an error that names a field."""

from __future__ import annotations

import random

from google.protobuf.message import DecodeError
from hypothesis import given, settings, strategies as st

from enginewire import v1 as pb
from tests.long import examples
from tests.server.validation.random_requests import random_request
from tests.server.validation.requests_to_check import config, failure_of

ENGINES = st.sampled_from(
    [
        config(),
        config(pb.Capabilities()),
        pb.EngineConfig(),
        *(config(role=role) for role in pb.EngineRole.values()),
    ]
)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**64), ENGINES)
def test_whatever_is_in_a_request_the_answer_is_yes_or_an_engine_error(
    seed: int, engine: pb.EngineConfig
) -> None:
    request = pb.GenerateRequest(request_id="r", request=random_request(random.Random(seed)))
    _judge(request, engine)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300), ENGINES)
def test_whatever_bytes_parse_the_answer_is_yes_or_an_engine_error(
    data: bytes, engine: pb.EngineConfig
) -> None:
    request = pb.GenerateRequest(request_id="r", request={"token_ids": [1]})
    try:
        request.request.MergeFromString(data)
    except DecodeError:
        return
    _judge(request, engine)


def _judge(request: pb.GenerateRequest, engine: pb.EngineConfig) -> None:
    """Check, and look at the failure if there is one. Any other exception fails the test."""
    failure = failure_of(request, engine)
    if failure is not None:
        assert failure.field
        assert str(failure).isprintable()
        assert len(str(failure)) < 512
