from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.client_side.stage.script import LENGTH, Say, Speaker, say, spoken


def test_positions_and_usage_are_counted() -> None:
    speaker = Speaker(pb.PreprocessedRequest(token_ids=[1, 2, 3]))
    outputs = [speaker.output(step) for step in (say("ab"), say("c"), Say(finish=LENGTH))]
    assert [output.first_output_position for output in outputs] == [0, 2, 3]
    usage = outputs[-1].completion_usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 3, 6)


def test_usage_waits_for_the_last_choice() -> None:
    speaker = Speaker(pb.PreprocessedRequest(sampling_options=pb.SamplingOptions(n=2)))
    first = speaker.output(say("a", finish=LENGTH, index=1))
    last = speaker.output(say("b", finish=LENGTH))
    assert (first.HasField("completion_usage"), last.HasField("completion_usage")) == (False, True)


def test_a_resumed_choice_goes_on_where_it_was() -> None:
    resume = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[7, 8])])
    output = Speaker(pb.PreprocessedRequest(resume=resume)).output(say("c", finish=LENGTH))
    assert (output.first_output_position, output.completion_usage.completion_tokens) == (2, 3)


def test_a_script_can_break_the_count() -> None:
    speaker = Speaker(pb.PreprocessedRequest())
    speaker.output(say("ab"))
    assert speaker.output(Say("ab", position=0)).first_output_position == 0


def test_spoken_text_is_a_message_per_byte() -> None:
    assert [step.token_ids for step in spoken("é") if isinstance(step, Say)] == [[0xC3], [0xA9]]
