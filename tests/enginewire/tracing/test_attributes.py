"""What spans say of a request: all that counts, and nothing that was said in it."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor

from enginewire import v1 as pb
from enginewire.tracing.attributes import address_of, attributes_of

SECRET = "a secret"
NUMBER = 424_242


def filled(message):
    """The message with every field set, texts to the secret and numbers to one that is seen again."""
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            continue
        value = {
            FieldDescriptor.TYPE_STRING: SECRET,
            FieldDescriptor.TYPE_BYTES: SECRET.encode(),
            FieldDescriptor.TYPE_BOOL: True,
            FieldDescriptor.TYPE_ENUM: 1,
        }.get(field.type, NUMBER)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        elif field.containing_oneof is None or field.has_presence:
            setattr(message, field.name, value)
    return message


def test_a_request_shows_its_numbers() -> None:
    request = pb.PreprocessedRequest(
        model="m",
        stop_conditions=pb.StopConditions(max_tokens=5),
        sampling_options=pb.SamplingOptions(n=2, temperature=0.7, top_p=0.9, top_k=3, presence_penalty=-0.1),
    )
    assert attributes_of(request) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "enginewire",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.presence_penalty": -0.1,
    }


def test_what_is_not_asked_for_is_not_shown() -> None:
    assert list(attributes_of(pb.PreprocessedRequest())) == ["gen_ai.operation.name", "gen_ai.provider.name"]
    embedding = attributes_of(pb.PreprocessedEmbeddingRequest(model="m"))
    assert (embedding["gen_ai.operation.name"], embedding["gen_ai.request.model"]) == ("embeddings", "m")


def test_nothing_that_a_caller_wrote_is_shown_but_the_model() -> None:
    request = filled(pb.PreprocessedRequest())
    for part in ("stop_conditions", "sampling_options", "output_options", "routing"):
        filled(getattr(request, part))
    request.model = "m"
    shown = attributes_of(request)
    assert SECRET not in str(shown)
    allowed = {"max_tokens", "choice.count", "temperature", "top_p", "top_k"}
    allowed |= {"frequency_penalty", "presence_penalty"}
    assert {
        name.removeprefix("gen_ai.request.") for name, value in shown.items() if value == NUMBER
    } == allowed


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("unix:/run/engine.sock", {"server.address": "/run/engine.sock"}),
        ("engine-0:50051", {"server.address": "engine-0", "server.port": 50051}),
        ("[::1]:50051", {"server.address": "::1", "server.port": 50051}),
        ("dns:///engine:50051", {"server.address": "engine", "server.port": 50051}),
        ("engine", {"server.address": "engine"}),
    ],
)
def test_where_an_engine_is(target: str, address: dict[str, object]) -> None:
    assert address_of(target) == address
