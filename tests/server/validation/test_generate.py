from __future__ import annotations

import math

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.server.failures import (
    ContextExceeded,
    InvalidRequest,
    ModelNotFound,
    RevisionMismatch,
    RoleMismatch,
)
from enginewire.server.validation.fields import FLOATS, MAX_ENTRIES
from enginewire.server.validation.generate import check_generate
from enginewire.v1.json_text import MAX_BYTES
from tests.server.validation.requests_to_check import (
    CONTEXT,
    VOCAB,
    Change,
    bias,
    check,
    config,
    decoded,
    failure_of,
    fields,
    ids,
    resumed,
    seconds_of,
)

INVALID = [
    ("token_ids", fields(token_ids=[])),
    ("token_ids[0]", fields(token_ids=[VOCAB])),
    ("token_ids[2]", fields(token_ids=[1, 2, 2**32 - 1])),
    ("eos_token_ids[0]", fields(eos_token_ids=[VOCAB + 7])),
    ("eos_token_ids", fields(eos_token_ids=ids(257))),
    ("prompt_embeds", fields(prompt_embeds=pb.Tensor())),
    ("stop_conditions.max_tokens", fields(stop_conditions__max_tokens=0)),
    ("stop_conditions.min_tokens", fields(stop_conditions__min_tokens=10, stop_conditions__max_tokens=5)),
    ("stop_conditions.stop_token_ids[1]", fields(stop_conditions__stop_token_ids=[1, VOCAB])),
    ("stop_conditions.stop_token_ids_visible[0]", fields(stop_conditions__stop_token_ids_visible=[VOCAB])),
    ("stop_conditions.stop_token_ids_hidden[0]", fields(stop_conditions__stop_token_ids_hidden=[VOCAB])),
    ("stop_conditions.stop_token_ids_hidden", fields(stop_conditions__stop_token_ids_hidden=ids(257))),
    ("stop_conditions.stop[0]", fields(stop_conditions__stop=[""])),
    ("stop_conditions.stop[1]", fields(stop_conditions__stop=["a", "a" * 1025])),
    ("stop_conditions.stop", fields(stop_conditions__stop=["a"] * 33)),
    ("sampling_options.n", fields(sampling_options__n=0)),
    ("sampling_options.n", fields(sampling_options__n=17)),
    ("sampling_options.n", fields(sampling_options__n=2**31 - 1)),
    ("sampling_options.best_of", fields(sampling_options__best_of=2**20)),
    ("sampling_options.best_of", fields(sampling_options__best_of=2, sampling_options__n=3)),
    ("sampling_options.temperature", fields(sampling_options__temperature=-1.0)),
    ("sampling_options.temperature", fields(sampling_options__temperature=100.1)),
    ("sampling_options.top_p", fields(sampling_options__top_p=0.0)),
    ("sampling_options.top_p", fields(sampling_options__top_p=-0.1)),
    ("sampling_options.top_p", fields(sampling_options__top_p=1.0001)),
    ("sampling_options.min_p", fields(sampling_options__min_p=1.5)),
    ("sampling_options.top_k", fields(sampling_options__top_k=-2)),
    ("sampling_options.top_k", fields(sampling_options__top_k=VOCAB + 1)),
    ("sampling_options.top_k", fields(sampling_options__top_k=2**31 - 1)),
    ("sampling_options.repetition_penalty", fields(sampling_options__repetition_penalty=0.0)),
    ("sampling_options.repetition_penalty", fields(sampling_options__repetition_penalty=-1.0)),
    ("sampling_options.repetition_penalty", fields(sampling_options__repetition_penalty=10.1)),
    ("sampling_options.presence_penalty", fields(sampling_options__presence_penalty=2.1)),
    ("sampling_options.frequency_penalty", fields(sampling_options__frequency_penalty=-2.1)),
    ("sampling_options.logit_bias[1].token_id", fields(sampling_options__logit_bias=bias(1) * 2)),
    ("sampling_options.logit_bias[0].bias", fields(sampling_options__logit_bias=[pb.LogitBias(bias=101)])),
    (
        "sampling_options.logit_bias[0].bias",
        fields(sampling_options__logit_bias=[pb.LogitBias(bias=math.nan)]),
    ),
    (
        "sampling_options.logit_bias[0].token_id",
        fields(sampling_options__logit_bias=[pb.LogitBias(token_id=VOCAB)]),
    ),
    ("sampling_options.logit_bias", fields(sampling_options__logit_bias=bias(1025))),
    ("sampling_options.allowed_token_ids[0]", fields(sampling_options__allowed_token_ids=[VOCAB])),
    (
        "sampling_options.bad_words_token_ids[0].token_ids[1]",
        fields(sampling_options__bad_words_token_ids=[pb.TokenSequence(token_ids=[1, VOCAB])]),
    ),
    (
        "sampling_options.bad_words_token_ids[0].token_ids",
        fields(sampling_options__bad_words_token_ids=[pb.TokenSequence()]),
    ),
    (
        "sampling_options.allowed_token_ids",
        fields(
            sampling_options__allowed_token_ids=[5, 7, 5],
            sampling_options__bad_words_token_ids=[pb.TokenSequence(token_ids=[i]) for i in (7, 9, 5)],
        ),
    ),
    (
        "sampling_options.bad_words_token_ids",
        fields(
            sampling_options__bad_words_token_ids=[pb.TokenSequence(token_ids=[i]) for i in range(VOCAB)],
        ),
    ),
    (
        "sampling_options.bad_words_token_ids",
        fields(sampling_options__bad_words_token_ids=[pb.TokenSequence(token_ids=[1])] * 1025),
    ),
    ("sampling_options.guided_decoding", fields(sampling_options__guided_decoding=pb.GuidedDecoding())),
    ("sampling_options.guided_decoding.regex", fields(sampling_options__guided_decoding__regex="")),
    (
        "sampling_options.guided_decoding.regex",
        fields(sampling_options__guided_decoding__regex="a" * (MAX_BYTES + 1)),
    ),
    (
        "sampling_options.guided_decoding.regex",
        fields(sampling_options__guided_decoding__regex="é" * (MAX_BYTES // 2) + "a"),
    ),
    (
        "sampling_options.guided_decoding.choice.choices",
        fields(
            sampling_options__guided_decoding__choice=pb.GuidedChoice(choices=["é" * (MAX_BYTES // 2), "a"])
        ),
    ),
    (
        "sampling_options.guided_decoding.json_schema",
        fields(sampling_options__guided_decoding__json_schema="{"),
    ),
    (
        "sampling_options.guided_decoding.json_schema",
        fields(sampling_options__guided_decoding__json_schema="[" * 5000 + "]" * 5000),
    ),
    (
        "sampling_options.guided_decoding.json_object",
        fields(sampling_options__guided_decoding__json_object=False),
    ),
    (
        "sampling_options.guided_decoding.choice.choices",
        fields(sampling_options__guided_decoding__choice=pb.GuidedChoice()),
    ),
    (
        "sampling_options.guided_decoding.choice.choices",
        fields(sampling_options__guided_decoding__choice=pb.GuidedChoice(choices=["a", ""])),
    ),
    ("output_options.logprobs", fields(output_options__logprobs=21)),
    ("output_options.logprobs", fields(output_options__logprobs=2**31)),
    ("output_options.prompt_logprobs", fields(output_options__prompt_logprobs=VOCAB)),
    ("output_options.logprob_token_ids[0]", fields(output_options__logprob_token_ids=[VOCAB])),
    ("output_options.stream_interval", fields(output_options__stream_interval=0)),
    ("routing.dp_rank", fields(routing__dp_rank=7)),
    ("routing.priority_jump", fields(routing__priority_jump=math.inf)),
    ("routing.session_control.action", fields(routing__session_control__action=99)),
    (
        "routing.routing_constraints.preferred_labels[1].weight",
        fields(
            routing__routing_constraints__preferred_labels=[
                pb.WeightedLabel(weight=1.0),
                pb.WeightedLabel(weight=-math.inf),
            ]
        ),
    ),
    ("router.ttft_target", fields(router__ttft_target=math.nan)),
    ("request_timestamp_ms", fields(request_timestamp_ms=math.nan)),
    ("annotations", fields(annotations=["a"] * 65)),
    ("annotations[1]", fields(annotations=["a", "é" * 513])),
    ("extra_args", fields(extra_args=b"\xff")),
    ("extra_args", fields(extra_args=b"[1]")),
    ("extra_args", fields(extra_args=b'{"a": NaN}')),
    ("extra_args", fields(extra_args=b'{"a":' * 65 + b"1" + b"}" * 65)),
    ("extra_args", fields(extra_args=b'{"a":"' + b"a" * MAX_BYTES + b'"}')),
    ("agent_context.extra", fields(agent_context__extra=b"no")),
    ("router_config_override.extra", fields(router_config_override__extra=b"1")),
    ("mm_processor_kwargs", fields(mm_processor_kwargs=b"1")),
    (
        "multi_modal_data[0].items[0]",
        fields(multi_modal_data=[pb.MultiModalPart(part_type="image_url", items=[{}])]),
    ),
    (
        "multi_modal_data[1].part_type",
        fields(multi_modal_data=[pb.MultiModalPart(part_type="image_url")] * 2),
    ),
    ("multi_modal_data[0].items[0].decoded.data_type", decoded()),
    ("multi_modal_data[0].items[0].decoded.metadata", decoded(data_type=pb.DATA_TYPE_UINT8, metadata=b"[]")),
    ("resume.choices[0].index", fields(resume__choices=[resumed(index=1)])),
    (
        "resume.choices[1].index",
        fields(resume__choices=[resumed(index=1), resumed(index=1)], sampling_options__n=2),
    ),
    (
        "resume.choices[0].generated_token_ids[0]",
        fields(resume__choices=[resumed(generated_token_ids=[VOCAB])]),
    ),
    (
        "resume.choices[0].generated_token_ids",
        fields(resume__choices=[resumed(generated_token_ids=ids(6))], stop_conditions__max_tokens=5),
    ),
    (
        "resume.choices[0].generated_token_ids",
        fields(resume__choices=[resumed(generated_token_ids=ids(CONTEXT))]),
    ),
    ("resume.choices[0].cum_log_probs", fields(resume__choices=[resumed(cum_log_probs=math.nan)])),
    ("resume.choices", fields(resume__choices=[resumed(finished=True)])),
]


@pytest.mark.parametrize(("field", "change"), INVALID, ids=[field for field, _ in INVALID])
def test_a_bad_value_is_refused_and_named(field: str, change: Change) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(change)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


VALID = [
    fields(stop_conditions__max_tokens=2**32 - 1),
    fields(stop_conditions__max_tokens=5, stop_conditions__min_tokens=5),
    fields(token_ids=ids(CONTEXT - 1), stop_conditions__max_tokens=10),
    fields(sampling_options__temperature=0.0),
    fields(sampling_options__temperature=1e-45),
    fields(sampling_options__top_p=1.0, sampling_options__top_k=-1, sampling_options__min_p=0.0),
    fields(sampling_options__top_k=VOCAB),
    fields(sampling_options__seed=2**64 - 1),
    fields(sampling_options__n=16, sampling_options__best_of=16),
    fields(sampling_options__logit_bias=bias(1000)),
    fields(output_options__logprobs=20),
    fields(routing__dp_rank=0, routing__priority=-(2**31), routing__priority_jump=-1e308),
    fields(routing__lora_name="adapter-1"),
    fields(model="an-adapter"),
    fields(extra_args=b'{"a": [1, {"b": "[[[["}]}'),
    fields(annotations=["key:value"] * 64),
    fields(sampling_options__guided_decoding__json_object=True),
    fields(sampling_options__guided_decoding__json_schema='{"type": "object"}'),
    fields(resume__choices=[resumed(generated_token_ids=ids(5))], stop_conditions__max_tokens=5),
    fields(resume__choices=[resumed(index=1, finished=True)], sampling_options__n=2),
    fields(migration_link__trace_id="garbage"),
    fields(multi_modal_data=[pb.MultiModalPart(part_type="image_url", items=[{"url": "https://host/cat"}])]),
    decoded(data_type=pb.DATA_TYPE_UINT8, metadata=b'{"fps": 24}'),
    decoded(data_type=pb.DATA_TYPE_FLOAT32),
]


@pytest.mark.parametrize("change", VALID)
def test_an_engine_that_can_do_everything_takes_every_valid_request(change: Change) -> None:
    check(change)


@pytest.mark.parametrize("name", ["", "tiny", "small"])
def test_every_served_name_is_a_model(name: str) -> None:
    check(fields(model=name), config(pb.Capabilities()))


@pytest.mark.parametrize("name", ["nope", "../other", "a\0b", "x" * 10_000])
def test_an_unknown_model_is_not_found_and_shown_escaped_and_cut(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        check(fields(model=name), config(pb.Capabilities()))
    assert caught.value.field == "model"
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 128


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "a\0b", "..%2e/", "x" * 10_000])
def test_an_adapter_name_that_is_no_name_is_not_found_with_one_text(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"^routing\.lora_name: no such adapter here$"):
        check(fields(routing__lora_name=name))


@pytest.mark.parametrize("count", [CONTEXT, CONTEXT + 1, 100_000])
def test_a_prompt_that_fills_the_context_is_refused(count: int) -> None:
    with pytest.raises(ContextExceeded, match=r"^token_ids: .*exceeds the context") as caught:
        check(fields(token_ids=ids(count)))
    assert caught.value.field == "token_ids"


def test_an_advertised_prompt_limit_holds() -> None:
    engine = config(limits=pb.Limits(max_prompt_tokens=10))
    check(fields(token_ids=ids(10)), engine)
    with pytest.raises(ContextExceeded):
        check(fields(token_ids=ids(11)), engine)


def test_min_tokens_beyond_the_window_exceed_the_context() -> None:
    check(fields(token_ids=ids(12), stop_conditions__min_tokens=500))
    with pytest.raises(ContextExceeded) as caught:
        check(fields(token_ids=ids(12), stop_conditions__min_tokens=501))
    assert caught.value.field == "stop_conditions.min_tokens"


def float_paths(descriptor: Descriptor, prefix: str = "") -> list[str]:
    found = []
    for field in descriptor.fields:
        path = f"{prefix}{field.name}" + ("[0]" if field.is_repeated else "")
        if field.message_type is not None:
            found += float_paths(field.message_type, f"{path}.")
        elif field.cpp_type in FLOATS:
            found.append(path)
    return found


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("path", float_paths(pb.PreprocessedRequest.DESCRIPTOR))
def test_no_float_anywhere_may_be_nan_or_infinite(path: str, value: float) -> None:
    request = pb.PreprocessedRequest(token_ids=[1])
    *parents, name = path.split(".")
    owner: Message = request
    for parent in parents:
        owner = getattr(owner, parent.removesuffix("[0]"))
        if parent.endswith("[0]"):
            owner = owner.add()  # type: ignore[attr-defined]  # a repeated composite
    setattr(owner, name, value)
    role = pb.ENGINE_ROLE_DECODE if path.startswith("prefill_result") else pb.ENGINE_ROLE_AGGREGATED
    failure = failure_of(pb.GenerateRequest(request_id="r", request=request), config(role=role))
    assert isinstance(failure, InvalidRequest)
    assert failure.field == path


HANDED_OVER = fields(prefill_result__handoff__params=b"x")
RENDEZVOUS = fields(bootstrap_info__bootstrap_port=70)


@pytest.mark.parametrize(
    ("role", "change", "field"),
    [
        (pb.ENGINE_ROLE_AGGREGATED, HANDED_OVER, "prefill_result"),
        (pb.ENGINE_ROLE_AGGREGATED, RENDEZVOUS, "bootstrap_info"),
        (pb.ENGINE_ROLE_PREFILL, HANDED_OVER, "prefill_result"),
        (pb.ENGINE_ROLE_DECODE, fields(), "prefill_result"),
        (pb.ENGINE_ROLE_ENCODE, fields(), "multi_modal_data"),
    ],
)
def test_a_request_of_another_role_is_refused(
    role: pb.EngineRole.ValueType, change: Change, field: str
) -> None:
    with pytest.raises(RoleMismatch) as caught:
        check(change, config(role=role))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("role", "change"),
    [
        (pb.ENGINE_ROLE_PREFILL, fields()),
        (pb.ENGINE_ROLE_PREFILL, RENDEZVOUS),
        (pb.ENGINE_ROLE_DECODE, HANDED_OVER),
        (pb.ENGINE_ROLE_DECODE, RENDEZVOUS),
    ],
)
def test_a_request_of_the_own_role_is_taken(role: pb.EngineRole.ValueType, change: Change) -> None:
    check(change, config(role=role))


@pytest.mark.parametrize("role", [role for role in pb.EngineRole.values() if role])
def test_a_probe_runs_on_every_role(role: pb.EngineRole.ValueType) -> None:
    check(fields(is_probe=True), config(pb.Capabilities(), role=role))


def test_a_probe_brings_no_hand_off_to_an_engine_of_another_role() -> None:
    with pytest.raises(RoleMismatch) as caught:
        check(fields(is_probe=True, prefill_result__handoff__params=b"x"), config())
    assert caught.value.field == "prefill_result"


@pytest.mark.parametrize("port", [0, 65_536, 70_000])
def test_a_port_is_a_port(port: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(
            fields(bootstrap_info=pb.BootstrapInfo(bootstrap_port=port)), config(role=pb.ENGINE_ROLE_PREFILL)
        )
    assert caught.value.field == "bootstrap_info.bootstrap_port"


def test_ranks_count_from_the_first_one_served_here() -> None:
    engine = config(data_parallel_start_rank=4, data_parallel_size=2)
    check(fields(routing__dp_rank=5), engine)
    for rank in (3, 6):
        with pytest.raises(InvalidRequest, match=r"allowed 4\.\.5$"):
            check(fields(routing__dp_rank=rank), engine)


@pytest.mark.parametrize("request_id", ["a", "A.b_c:d-9", "x" * 128])
def test_plain_names_are_request_ids(request_id: str) -> None:
    check_generate(pb.GenerateRequest(request_id=request_id, request={"token_ids": [1]}), config())


@pytest.mark.parametrize("request_id", ["", "x" * 129, "a/../../x", "x\ny\x1b[31m", "\u202e", "a\n", "é"])
def test_anything_else_is_no_request_id(request_id: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_generate(pb.GenerateRequest(request_id=request_id, request={"token_ids": [1]}), config())
    assert caught.value.field == "request_id"
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


def test_a_request_without_a_request_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_generate(pb.GenerateRequest(request_id="r"), config())
    assert caught.value.field == "request"


def test_revisions_outside_of_the_range_are_refused_with_the_range() -> None:
    request = pb.GenerateRequest(request_id="r", request={"token_ids": [1]})
    for revision in (0, pb.MINIMUM_CLIENT_REVISION, pb.CONTRACT_REVISION):
        request.client_revision = revision
        check_generate(request, config())
    request.client_revision = pb.CONTRACT_REVISION + 1
    with pytest.raises(RevisionMismatch) as caught:
        check_generate(request, config())
    assert caught.value.field == "client_revision"
    assert caught.value.metadata["maximum_client_revision"] == str(pb.CONTRACT_REVISION)


def test_a_message_says_what_is_wrong_what_was_got_and_what_is_allowed() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(fields(sampling_options__temperature=-1.0))
    assert str(caught.value) == "sampling_options.temperature: out of range, got -1.0, allowed [0, 100]"


def test_checking_changes_nothing() -> None:
    request = pb.GenerateRequest(request_id="r", request={"token_ids": [1], "model": "tiny"})
    before = request.SerializeToString(deterministic=True)
    check_generate(request, config())
    assert request.SerializeToString(deterministic=True) == before


def test_8192_token_ids_are_checked_in_less_than_a_millisecond() -> None:
    engine = config(context_length=16_384)
    request = pb.GenerateRequest(request_id="r", request={"token_ids": [i % VOCAB for i in range(8192)]})
    assert min(seconds_of(lambda: check_generate(request, engine)) for _ in range(50)) < 1e-3


def test_a_flood_of_entries_is_refused_before_it_costs_anything() -> None:
    flood = fields(routing__routing_constraints__preferred_labels=[pb.WeightedLabel()] * (MAX_ENTRIES + 1))
    with pytest.raises(InvalidRequest, match="too many entries"):
        check(flood)
    ignored = fields(mm_routing_info__block_mm_infos=[pb.BlockExtraInfo()] * 200_000)
    check(ignored)
