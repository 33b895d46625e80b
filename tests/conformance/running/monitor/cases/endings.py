"""Answers that end too early, too late or with another reason."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.running.monitor.cases.register import RESUMED, STOP, TWO, breaks, last, output, put
from tests.conformance.running.monitor.made import generated, outputs, request

FINISHED = pb.Resume(choices=[pb.ResumedChoice(index=0, generated_token_ids=[9], finished=True)])


@breaks("finished_choices_are_silent", "it sends")
def _() -> Exchange:
    one = request(n=2, resume=FINISHED)
    made = [pb.LLMEngineOutput(token_ids=[8], first_output_position=1), *outputs(one, TWO)]
    return generated(one, made, None)


ENDED = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[8, 40])])
for _asked in ({"max_tokens": 2}, {"stop_token_ids": [40]}, {"eos_token_ids": [40], "ignore_eos": None}):
    output("what_has_ended_gets_no_token", str(_asked), lambda made: None, resume=ENDED, **_asked)

output("max_tokens_holds", "one too many", lambda made: None, tokens=((11, 12, 13, 14, 15),))
output("max_tokens_holds_with_resume", "what was handed in on top", lambda made: None, resume=RESUMED)
output(
    "one_token_is_one",
    "none at all",
    lambda made: made[0].ClearField("token_ids"),
    tokens=((11,),),
    max_tokens=1,
)
output("the_window_holds", "cut at two", lambda made: None, tokens=((11, 12),))
output("the_window_holds", "beyond it", lambda made: None, tokens=(range(10, 80),), max_tokens=99)
output("max_tokens_ends_with_length", "EOS", put("finish_reason", pb.FINISH_REASON_EOS))
output(
    "the_window_ends_with_length",
    "an error",
    put("finish_reason", pb.FINISH_REASON_ERROR),
    tokens=(range(10, 71),),
    max_tokens=99,
)
output(
    "min_tokens_holds",
    "too early",
    lambda made: None,
    tokens=((11, 12),),
    reasons=(STOP,),
    stop_token_ids=[12],
    min_tokens=3,
)
output(
    "min_tokens_holds_with_resume",
    "too early",
    lambda made: None,
    tokens=((13,),),
    reasons=(STOP,),
    stop_token_ids=[13],
    min_tokens=4,
    resume=RESUMED,
)
output("caller_stops_end_a_choice", "it goes on", lambda made: None, stop_token_ids=[12])
output("caller_stops_end_a_choice", "the last one as LENGTH", lambda made: None, stop_token_ids_visible=[14])
output(
    "caller_stops_end_a_choice", "the seventeenth id", lambda made: None, stop_token_ids=[*range(40, 56), 13]
)
output("system_stops_end_a_choice", "it goes on", lambda made: None, eos_token_ids=[12], ignore_eos=False)
output("system_stops_end_a_choice", "LENGTH", lambda made: None, stop_token_ids_hidden=[14], ignore_eos=None)
output("system_stops_end_a_choice", "in spite of ignore_eos", put("finish_reason", pb.FINISH_REASON_EOS))
output(
    "the_token_that_stops_is_the_last",
    "none",
    lambda made: None,
    tokens=((11, 12),),
    reasons=(STOP,),
    stop_token_ids=[13],
)
output(
    "the_token_that_stops_is_the_last",
    "no EOS",
    put("finish_reason", pb.FINISH_REASON_EOS),
    ignore_eos=None,
    max_tokens=9,
)
output(
    "a_stop_names_its_match",
    "no match",
    last(lambda one: one.ClearField("stop_match")),
    tokens=((11, 12),),
    reasons=(STOP,),
    stop_token_ids=[12],
)
output(
    "a_stop_names_its_match",
    "another of the list",
    last(lambda one: setattr(one.stop_match, "token_id", 50)),
    tokens=((11, 12),),
    reasons=(STOP,),
    stop_token_ids=[50, 12],
)
output("a_stop_names_its_match", "with LENGTH", last(lambda one: setattr(one.stop_match, "token_id", 50)))
