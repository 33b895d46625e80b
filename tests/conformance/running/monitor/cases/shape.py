"""Answers of another shape than their requests ask for."""

from __future__ import annotations

import grpc

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.running.monitor.cases.register import TWO, breaks, output, put
from tests.conformance.running.monitor.made import LIFE, generated, outputs, refused, request

output("an_answer_is_not_empty", "no message", lambda made: made.clear())
output("choices_are_those_asked_for", "a choice too many", put("index", 1, 0))
output("reasons_are_known", "99", put("finish_reason", 99))
output("each_choice_has_its_terminal", "none", put("finish_reason", 0))
output("each_choice_has_its_terminal", "two", lambda made: made.append(made[-1]))
output("each_choice_has_its_terminal", "none of choice 1", lambda made: made.pop(), n=2)
output(
    "a_terminal_is_the_last_of_its_choice",
    "a token behind it",
    lambda made: made.append(pb.LLMEngineOutput(token_ids=[15], first_output_position=4)),
)
output("outputs_bring_something", "nothing", lambda made: made.insert(1, pb.LLMEngineOutput()))
output(
    "tokens_are_deltas",
    "all of them again",
    lambda made: [
        setattr(one, "first_output_position", 0)
        or one.token_ids.__setitem__(slice(None), TWO[0][: number + 1])
        for number, one in enumerate(made)
    ],
)
output(
    "resumed_positions_go_on",
    "from nothing",
    put("first_output_position", 0, 0),
    tokens=((13, 14),),
    resume=pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[11, 12])]),
)
output("positions_count_the_tokens", "a gap", put("first_output_position", 2, 1))
output("positions_count_the_tokens", "over both choices", put("first_output_position", 1, 1), n=2)
output("positions_count_the_tokens", "runs and not tokens", put("first_output_position", 1), run=2)
output("ids_are_of_the_vocabulary", "128", lambda made: made[1].token_ids.__setitem__(0, 128))
output(
    "ids_are_of_the_vocabulary",
    "an alternative",
    lambda made: made[1].logprobs.top_token_ids.__setitem__(1, 4000),
    logprobs=2,
)


@breaks("an_answer_ends_in_one_way", "terminal and status")
def _() -> Exchange:
    exchange = generated(request(), outputs(request()))
    failed = refused(request(), pb.ErrorDetail(reason=pb.ERROR_REASON_CANCELLED), grpc.StatusCode.CANCELLED)
    exchange.code, exchange.trailing_metadata = failed.code, failed.trailing_metadata
    return exchange


@breaks("messages_name_their_request", "another id")
def _() -> Exchange:
    exchange = generated(request(), outputs(request()))
    exchange.messages[2].request_id = "r-2"  # type: ignore[attr-defined]  # a GenerateResponse
    return exchange


@breaks("the_life_is_told_once", "on each message")
def _() -> Exchange:
    exchange = generated(request(), outputs(request()))
    exchange.messages[1].engine_lifetime_id = LIFE  # type: ignore[attr-defined]  # a GenerateResponse
    return exchange
