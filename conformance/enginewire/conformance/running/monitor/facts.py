"""What an exchange shows, in the terms of the contract: answers to requests, failures, and the call itself.

An answer is the same whether it came over Generate or as a handle of GenerateMultiplexed. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Final, TypeVar, cast

import grpc
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange, detail_of
from enginewire.conformance.wire.methods import GENERATE
from enginewire.conformance.wire.stream import Choice, choices_of, num_choices

M = TypeVar("M", bound=Message)
Part = pb.LLMEngineOutput | pb.EngineEvent
Row = tuple[int, float, list[int], list[float]]
"""Token, log-probability, alternatives and their values."""

CUT: Final = frozenset({pb.FINISH_REASON_CANCELLED, pb.FINISH_REASON_ERROR, pb.FINISH_REASON_CONTENT_FILTER})
"""Reasons that may come at any time; nothing in the request says when."""

CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Seen:
    """One RPC, and what is known about the engine it was sent to: nothing where `info` is empty.

    `before`: the last load of each life that had arrived when the call began.
    """

    exchange: Exchange
    info: pb.GetEngineInfoResponse
    before: Mapping[str, pb.Load] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A status other than OK. `is_event`: of one handle of a multiplexed stream, so the server made it."""

    exchange: Exchange
    code: grpc.StatusCode
    text: str
    status: pb.Status | None
    is_event: bool = False
    is_known: bool = True
    """False where the target may be no engine server, or one behind a proxy that breaks things."""

    @property
    def detail(self) -> pb.ErrorDetail | None:
        """What the server says about it; None without."""
        return detail_of(self.status) if self.status else None


@dataclass(eq=False)
class Answer:
    """All that one request got. `code`: None unless its end was seen; `late` came after that of a handle."""

    exchange: Exchange
    request: pb.GenerateRequest
    config: pb.EngineConfig
    parts: list[Part] = field(default_factory=list)
    code: grpc.StatusCode | None = None
    detail: pb.ErrorDetail | None = None
    accepted: list[pb.Accepted] = field(default_factory=list)
    late: list[object] = field(default_factory=list)
    is_multiplexed: bool = False
    is_early: bool = False
    """True when something of a handle came before the frame with its Accepted."""

    @property
    def is_known(self) -> bool:
        """True when the engine said who it is."""
        return bool(self.config.vocab_size)

    @property
    def is_ok(self) -> bool:
        """Served to its end."""
        return self.code is grpc.StatusCode.OK

    @property
    def body(self) -> pb.PreprocessedRequest:
        """What was asked for."""
        return self.request.request

    @cached_property
    def outputs(self) -> list[pb.LLMEngineOutput]:
        """All outputs, in order."""
        return [part for part in self.parts if isinstance(part, pb.LLMEngineOutput)]

    @cached_property
    def scored(self) -> list[pb.LLMEngineOutput]:
        """Outputs with log-probabilities of their tokens."""
        return [output for output in self.outputs if output.HasField("logprobs")]

    @cached_property
    def token_ids(self) -> list[int]:
        """Those of all outputs, whatever their choices."""
        return list(chain.from_iterable(output.token_ids[:] for output in self.outputs))

    @cached_property
    def rows(self) -> list[list[Row]]:
        """The table of each scored output; empty where it has not one row per token."""
        return [rows_of(output) for output in self.scored]

    @cached_property
    def choices(self) -> dict[int, Choice]:
        """The outputs of each choice."""
        return choices_of(self.outputs)

    @cached_property
    def terminals(self) -> list[pb.LLMEngineOutput]:
        """Outputs with a finish_reason, in order."""
        return [output for output in self.outputs if output.finish_reason]

    @cached_property
    def count(self) -> int:
        """How many choices were asked for."""
        return num_choices(self.body)

    @cached_property
    def is_handed_over(self) -> bool:
        """Another engine goes on with the prompt, for all choices."""
        return any(output.HasField("prefill_handoff") for output in self.outputs)

    @cached_property
    def resumed(self) -> dict[int, pb.ResumedChoice]:
        """What was handed in of each choice of which there was something."""
        choices = self.body.resume.choices
        return {each.index: each for each in choices if each != pb.ResumedChoice(index=each.index)}

    def handed_in(self, index: int) -> int:
        """How many output tokens a choice had before."""
        return len(self.resumed[index].generated_token_ids) if index in self.resumed else 0

    def length(self, choice: Choice) -> int:
        """Output tokens of a choice, those that were handed in included."""
        return self.handed_in(choice.index) + len(choice.tokens)

    def last_token(self, choice: Choice) -> list[int]:
        """The last output token of a choice, which may have been handed in; empty where it has none."""
        handed = self.resumed[choice.index].generated_token_ids if choice.index in self.resumed else []
        return choice.tokens[-1:] or list(handed[-1:])

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt; None where only the engine knows."""
        if self.body.multi_modal_data:
            return None
        rows = self.body.prompt_embeds.shape
        return len(self.body.token_ids) or (rows[0] if rows else 0)

    @cached_property
    def ended(self) -> list[Choice]:
        """Choices that a rule of the request ended, in a request that was served."""
        whole = self.is_ok and not self.is_handed_over
        choices = self.choices.values() if whole else ()
        return [choice for choice in choices if choice.terminal and choice.finish_reason not in CUT]

    @property
    def is_guided(self) -> bool:
        """A grammar decides as well what comes and when it ends."""
        return self.body.sampling_options.HasField("guided_decoding")

    @property
    def has_text_stops(self) -> bool:
        """The engine may stop for a text."""
        return bool(self.body.stop_conditions.stop)

    @cached_property
    def caller_ids(self) -> frozenset[int]:
        """The stop ids of the caller, of both lists."""
        conditions = self.body.stop_conditions
        return frozenset({*conditions.stop_token_ids, *conditions.stop_token_ids_visible})

    @cached_property
    def system_ids(self) -> frozenset[int]:
        """End-of-sequence ids and hidden stop ids; none under ignore_eos."""
        conditions = self.body.stop_conditions
        return frozenset() if conditions.ignore_eos else self._eos | set(conditions.stop_token_ids_hidden)

    @cached_property
    def caller_stops(self) -> frozenset[int]:
        """Ids that end a choice with STOP and with nothing else."""
        return self.caller_ids - self._eos - set(self.body.stop_conditions.stop_token_ids_hidden)

    @cached_property
    def system_stops(self) -> frozenset[int]:
        """Ids that end a choice with EOS and with nothing else: hidden in one list is hidden."""
        return self.system_ids - (self.caller_ids - set(self.body.stop_conditions.stop_token_ids_hidden))

    @property
    def _eos(self) -> frozenset[int]:
        return frozenset(self.body.eos_token_ids or self.config.eos_token_ids)


def of_generate(exchange: Exchange, config: pb.EngineConfig) -> Answer | None:
    """The answer of a Generate; None where the request is no message, as when its bytes are broken."""
    if exchange.method != GENERATE or not isinstance(exchange.request, pb.GenerateRequest):
        return None
    answer = Answer(exchange, exchange.request, config, code=exchange.code, detail=exchange.detail)
    for response in cast(list[pb.GenerateResponse], exchange.messages):
        is_event = response.HasField("engine_event")
        answer.parts.append(response.engine_event if is_event else response.output)
    return answer


def failure_of(exchange: Exchange, *, is_known: bool) -> Failure | None:
    """How an RPC failed; None where it did not, or has no end."""
    if exchange.code is None or exchange.is_ok:
        return None
    return Failure(exchange, exchange.code, exchange.text, exchange.status_details, is_known=is_known)


def messages_of(exchange: Exchange, kind: type[M]) -> list[M]:
    """All messages of an RPC that answers with this kind; of any other one none."""
    messages = exchange.messages
    return cast(list[M], messages) if messages and isinstance(messages[0], kind) else []


def loads_of(exchange: Exchange) -> Iterator[pb.Load]:
    """Every load that an RPC told."""
    yield from (answer.load for answer in messages_of(exchange, pb.GetLoadResponse))
    yield from (answer.load for answer in messages_of(exchange, pb.WatchLoadResponse))


def with_loads_before(exchanges: Iterable[Exchange]) -> Iterator[tuple[Exchange, Mapping[str, pb.Load]]]:
    """The exchanges in the order in which they began, each with the last load of each life before it."""
    begun = sorted(exchanges, key=lambda exchange: exchange.started_at)
    told = sorted(
        (
            (arrived.at, load)
            for exchange in begun
            for arrived, load in zip(exchange.arrived, loads_of(exchange), strict=False)
            if load.engine_lifetime_id
        ),
        key=lambda each: each[0],
        reverse=True,
    )
    before: dict[str, pb.Load] = {}
    for exchange in begun:
        while told and told[-1][0] < exchange.started_at:
            load = told.pop()[1]
            before[load.engine_lifetime_id] = load
        yield exchange, dict(before)


def rows_of(output: pb.LLMEngineOutput) -> list[Row]:
    """The rows of its table; LOG-01 and LOG-04 say that there are as many of everything."""
    table = output.logprobs
    tokens, chosen = output.token_ids[:], table.token_logprobs[:]
    if len(chosen) != len(tokens):
        return []
    ids, values, top = table.top_token_ids[:], table.top_logprobs[:], table.top_n
    return [
        (token, value, ids[number * top : (number + 1) * top], values[number * top : (number + 1) * top])
        for number, (token, value) in enumerate(zip(tokens, chosen, strict=True))
    ]
