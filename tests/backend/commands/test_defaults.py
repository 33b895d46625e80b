from __future__ import annotations

from enginewire import v1 as pb
from enginewire.backend.commands.defaults import default_request, with_defaults
from enginewire.backend.config import JsonlOptions


def test_options_that_were_not_given_leave_the_choice_to_the_engine() -> None:
    assert default_request(JsonlOptions()) == pb.PreprocessedRequest()


def test_every_option_becomes_its_field() -> None:
    options = JsonlOptions(
        max_tokens=9,
        min_tokens=1,
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        seed=2**64 - 1,
        n=2,
        stop=("a",),
        ignore_eos=True,
    )
    assert default_request(options) == pb.PreprocessedRequest(
        stop_conditions=pb.StopConditions(max_tokens=9, min_tokens=1, stop=["a"], ignore_eos=True),
        sampling_options=pb.SamplingOptions(temperature=0.5, top_p=0.25, top_k=3, seed=2**64 - 1, n=2),
    )


def test_zero_is_a_value() -> None:
    request = default_request(JsonlOptions(temperature=0.0, seed=0))
    assert request.sampling_options.HasField("temperature")
    assert request.sampling_options.HasField("seed")


def test_what_a_request_says_wins_over_the_defaults() -> None:
    defaults = default_request(JsonlOptions(max_tokens=9, seed=1, stop=("a",)))
    request = pb.PreprocessedRequest(stop_conditions=pb.StopConditions(max_tokens=2, stop=["b"]))
    merged = with_defaults(request, defaults)
    assert merged.stop_conditions.max_tokens == 2
    assert list(merged.stop_conditions.stop) == ["b"]
    assert merged.sampling_options.seed == 1
    assert list(with_defaults(pb.PreprocessedRequest(), defaults).stop_conditions.stop) == ["a"]
    assert list(defaults.stop_conditions.stop) == ["a"]
