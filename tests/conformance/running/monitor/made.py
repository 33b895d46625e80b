"""Exchanges made by hand: what a correct engine answers, to be broken in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.watch import problems
from enginewire.conformance.session import requests
from enginewire.conformance.wire.exchange import DETAILS_KEY, Arrived, Exchange, Sent
from enginewire.conformance.wire.foreign import google_rpc
from enginewire.conformance.wire.methods import GENERATE
from enginewire.conformance.wire.multiplexed import NAME as MULTIPLEXED

PROMPT = [5, 6, 7]
EOS = 2
OK = grpc.StatusCode.OK
LIFE = "life-1"

INFO = pb.GetEngineInfoResponse(
    engine_name="made",
    config=pb.EngineConfig(
        model="made",
        vocab_size=128,
        eos_token_ids=[EOS],
        context_length=64,
        kv_cache_block_size=16,
        total_kv_blocks=8,
        max_num_seqs=4,
        role=pb.ENGINE_ROLE_AGGREGATED,
        capabilities=pb.Capabilities(
            logprobs=True,
            prompt_logprobs=True,
            selected_logprobs=True,
            multiple_choices=True,
            resume=True,
            logit_bias=True,
            multiplexed=True,
            annotations=["made.note"],
        ),
    ),
)

Part = pb.LLMEngineOutput | pb.EngineEvent
Case = tuple[str, Callable[[], tuple[Exchange, pb.GetEngineInfoResponse]]]


def request(**changes: object) -> pb.GenerateRequest:
    """A request for four tokens, with some fields changed."""
    return requests.change(requests.good_request("r-1", PROMPT), **changes)


def outputs(
    asked: pb.GenerateRequest,
    tokens: Sequence[Sequence[int]] = ((11, 12, 13, 14),),
    reasons: Sequence[pb.FinishReason.ValueType] = (),
    run: int = 1,
) -> list[pb.LLMEngineOutput]:
    """What a correct engine sends for these tokens of each choice, in runs, choice after choice in turn."""
    options, resumed = asked.request.output_options, {r.index: r for r in asked.request.resume.choices}
    by_choice = []
    for index, ids in enumerate(tokens):
        before = resumed.get(index, pb.ResumedChoice())
        if before.finished:
            continue
        position, total, made = len(before.generated_token_ids), before.cum_log_probs, []
        for begin in range(0, len(ids), run):
            part = list(ids[begin : begin + run])
            output = pb.LLMEngineOutput(token_ids=part, first_output_position=position, index=index)
            position += len(part)
            if options.HasField("logprobs"):
                total += -0.5 * len(part)
                output.logprobs.CopyFrom(table(part, options.logprobs))
                output.cum_log_probs = total
            made.append(output)
        made[-1].finish_reason = reasons[index] if reasons else pb.FINISH_REASON_LENGTH
        if made[-1].finish_reason == pb.FINISH_REASON_STOP:
            made[-1].stop_match.token_id = ids[-1]
        by_choice.append(made)
    longest = max(map(len, by_choice))
    found = [made[row] for row in range(longest) for made in by_choice if row < len(made)]
    handed_in = sum(len(choice.generated_token_ids) for choice in resumed.values())
    sent = handed_in + sum(len(output.token_ids) for output in found)
    last = [output for output in found if output.finish_reason][-1]
    usage = pb.CompletionUsage(prompt_tokens=len(PROMPT), completion_tokens=sent)
    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
    last.completion_usage.CopyFrom(usage)
    return found


def table(ids: Sequence[int], top: int) -> pb.Logprobs:
    """Rows in which the token is the best of `top` alternatives."""
    rows = pb.Logprobs(token_logprobs=[-0.5] * len(ids), top_n=top)
    for token in ids:
        rows.top_token_ids.extend([token, *range(100, 100 + top - 1)][:top])
        rows.top_logprobs.extend([-0.5, *(-3.0 - other for other in range(top - 1))][:top])
    return rows


def generated(
    asked: pb.GenerateRequest, parts: Iterable[Part], code: grpc.StatusCode | None = OK
) -> Exchange:
    """A Generate with these outputs and events."""
    exchange = Exchange(GENERATE, asked, code=code, ended_at=9.0)
    for number, part in enumerate(parts):
        response = pb.GenerateResponse(request_id=asked.request_id, engine_lifetime_id="" if number else LIFE)
        if isinstance(part, pb.EngineEvent):
            response.engine_event.CopyFrom(part)
        else:
            response.output.CopyFrom(part)
        exchange.arrived.append(Arrived(float(number), response, response.ByteSize()))
    return exchange


def frames(
    asked: Sequence[tuple[int, pb.GenerateRequest]],
    events: Iterable[pb.GenerateMultiplexedResponse],
    code: grpc.StatusCode | None = OK,
) -> Exchange:
    """A multiplexed stream: all requests at 0, then a frame each second."""
    exchange = Exchange(MULTIPLEXED, None, code=code, ended_at=99.0)
    for handle, one in asked:
        submit = pb.Submit(handle=handle, generate=one)
        exchange.sent.append(Sent(0.0, pb.GenerateMultiplexedRequest(submits=[submit])))
    for number, frame in enumerate(events):
        exchange.arrived.append(Arrived(1.0 + number, frame, frame.ByteSize()))
    return exchange


def frame(handle: int, *parts: object, step: int = 1, accepted: str = "") -> pb.GenerateMultiplexedResponse:
    """One frame of events of one handle."""
    made = pb.GenerateMultiplexedResponse(step=step)
    if accepted:
        event = pb.Accepted(engine_lifetime_id=LIFE, request_id=accepted)
        made.events.append(pb.HandleEvent(handle=handle, accepted=event))
    for part in parts:
        if isinstance(part, pb.EngineEvent):
            made.events.append(pb.HandleEvent(handle=handle, engine_event=part))
        elif isinstance(part, pb.Status):
            made.events.append(pb.HandleEvent(handle=handle, status=part))
        elif isinstance(part, pb.LLMEngineOutput):
            made.events.append(pb.HandleEvent(handle=handle, output=part))
    return made


def called(
    method: str, asked: Message, *answers: Message, code: grpc.StatusCode | None = OK, gap: float = 1.0
) -> Exchange:
    """Any other RPC, with an answer every `gap` seconds."""
    exchange = Exchange(method, asked, code=code, ended_at=99.0)
    for number, answer in enumerate(answers):
        exchange.arrived.append(Arrived(number * gap, answer, answer.ByteSize()))
    return exchange


def status(detail: pb.ErrorDetail | None, code: grpc.StatusCode, text: str = "no") -> pb.Status:
    """A status with its detail, which it says in words of google.rpc as well."""
    made = pb.Status(code=code.value[0], message=text)
    if detail is not None:
        packed = Any()
        packed.Pack(detail)
        reason = google_rpc.name_of(detail.reason)
        made.details.extend([packed, google_rpc.packed("ErrorInfo", reason=reason, domain=google_rpc.DOMAIN)])
    return made


def refused(
    asked: Message | bytes,
    detail: pb.ErrorDetail | None,
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
    text: str = "no",
    method: str = GENERATE,
) -> Exchange:
    """An RPC that ended with a status alone."""
    trailers = status(detail, code, text).SerializeToString()
    entries = ((DETAILS_KEY, trailers),) if detail is not None else ()
    return Exchange(method, asked, code=code, text=text, trailing_metadata=entries, ended_at=9.0)


def changed(info: pb.GetEngineInfoResponse = INFO, **fields: object) -> pb.GetEngineInfoResponse:
    """The facts with other fields of the config."""
    other = pb.GetEngineInfoResponse()
    other.CopyFrom(info)
    other.config.MergeFrom(pb.EngineConfig(**fields))  # type: ignore[arg-type]  # what a test needs
    return other


def seen(exchange: Exchange, info: pb.GetEngineInfoResponse = INFO) -> list[str]:
    """The ids of everything that is wrong with an exchange, with the messages."""
    return [f"{identifier}: {problem}" for identifier, problem in problems(exchange, info)]
