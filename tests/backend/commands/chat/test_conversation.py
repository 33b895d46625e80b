from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.commands.chat.conversation import Conversation
from enginewire.backend.commands.chat.options import ChatOptions
from enginewire.options import OptionError


def said(request: pb.BackendServiceGenerateRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.chat.messages]


def test_what_was_said_comes_before_the_question_until_it_is_forgotten() -> None:
    conversation = Conversation(ChatOptions(system="be brief"))
    conversation.answered("a", "b")
    conversation.answered("c", "")
    before = [("system", "be brief"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "")]
    assert said(conversation.request("d")) == [*before, ("user", "d")]
    assert said(conversation.request("e")) == [*before, ("user", "e")]
    conversation.clear()
    assert said(conversation.request("f")) == [("system", "be brief"), ("user", "f")]


def test_parameters_and_stop_strings_are_those_of_the_next_request() -> None:
    conversation = Conversation(ChatOptions(stop=("x",), max_tokens=5))
    conversation.set_parameter("temperature", "0.5")
    conversation.set_parameter("ignore_eos", "true")
    conversation.set_parameter("max_tokens", "")
    conversation.stop_at(["a b", "日本"])
    request = conversation.request("q").request
    assert request.sampling_options == pb.SamplingOptions(temperature=0.5)
    assert request.stop_conditions == pb.StopConditions(stop=["a b", "日本"], ignore_eos=True)
    shown = dict(conversation.parameters())
    assert (shown["temperature"], shown["max_tokens"], shown["stop"]) == ("0.5", "", "'a b' '日本'")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("top_p", "2", "top_p: must be a number from 0 to 1, got 2.0"),
        ("top_p", "0", "--top-p must be above 0"),
        ("n", "2", "n: allowed are max_tokens"),
        ("launch", "x", "launch: allowed are max_tokens"),
    ],
)
def test_a_wrong_parameter_is_refused_and_changes_nothing(name: str, text: str, message: str) -> None:
    conversation = Conversation(ChatOptions(top_p=0.5))
    with pytest.raises(OptionError, match=f"^{message}"):
        conversation.set_parameter(name, text)
    with pytest.raises(OptionError):
        conversation.stop_at(["", "x"])
    assert conversation.options == ChatOptions(top_p=0.5)
