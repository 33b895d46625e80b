"""A bug that waits for a condition: where it is, where it is not, and which pairs are live."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from enginewire import v1 as pb
from enginewire.conformance.mutants import Mutant
from enginewire.conformance.mutants.options.limits import OneTooMany
from enginewire.conformance.proof.second_order import draw
from enginewire.conformance.proof.second_order.conditions import CONDITIONS, Gathering
from enginewire.conformance.proof.second_order.draw import Pair, Standing, pairs, standing
from enginewire.conformance.proof.second_order.probe import transcript
from enginewire.conformance.proof.second_order.when import overridden, when
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.session.requests import change, good_request
from tests.conformance.judging import judged, statuses
from tests.long import long

NAMED = {condition.name: condition for condition in CONDITIONS}
FIRST = Mutant("one_too_many", ("LIM-01",), OneTooMany)


class Counted(Reference):
    """Says of every usage that it is nothing."""

    def usage(self, job: Job) -> pb.CompletionUsage:
        return pb.CompletionUsage()


class Decides(Reference):
    """Every token is an end of sequence; sees no request, only logits."""

    def log_softmax(self, logits: list[float]) -> list[float]:
        return [-1.0 for _ in logits]


def outputs_of(server: type[Reference], **changes: object) -> list[pb.LLMEngineOutput]:
    """What a request gets, without a loop around the server."""

    async def made() -> list[pb.LLMEngineOutput]:
        serving = server()
        job = serving.job("r-1", change(good_request("r-1", [5, 6, 7]), **changes).request)
        return [serving.advance(choice) for _ in range(2) for choice in job.open_choices]

    return asyncio.run(made())


@pytest.mark.parametrize(("changes", "is_wrong"), [({"n": 2}, True), ({}, False)])
def test_a_bug_is_there_for_the_requests_for_which_its_condition_holds(
    changes: dict[str, object], is_wrong: bool
) -> None:
    server = when(NAMED["several_choices"], FIRST)()
    request = change(good_request("r-1", [5, 6, 7]), max_tokens=5, **changes).request
    assert server.room(server.job("r-1", request).choices[0]) == 5 + is_wrong


@pytest.mark.parametrize(("changes", "is_wrong"), [({"temperature": 0.5}, True), ({}, False)])
def test_a_method_that_sees_no_request_is_about_the_one_that_goes_on(
    changes: dict[str, object], is_wrong: bool
) -> None:
    server = when(NAMED["sampled"], Mutant("decides", (), Decides))
    output, _ = outputs_of(server, logprobs=0, **changes)
    assert (output.logprobs.token_logprobs[0] == -1.0) is is_wrong


def test_what_says_something_of_the_server_is_wrong_while_such_a_request_is_live() -> None:
    class Busy(Reference):
        def load(self) -> pb.Load:
            return pb.Load(running=99)

    async def loads() -> list[int]:
        server = when(NAMED["resumed"], Mutant("busy", (), Busy))()
        seen = [server.load().running]
        resume = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[5])])
        for name, changes in (("plain", {}), ("resumed", {"resume": resume})):
            server.admit(server.job(name, change(good_request(name, [5]), **changes).request))
            seen.append(server.load().running)
        return seen

    assert asyncio.run(loads()) == [0, 0, 99]


def test_a_condition_is_asked_before_the_first_request_without_harm() -> None:
    class Nameless(Reference):
        def engine_config(self) -> pb.EngineConfig:
            return pb.EngineConfig()

    server = when(NAMED["engine_full"], Mutant("nameless", (), Nameless))()
    assert server.config == Reference().config


def test_what_is_set_up_once_is_no_bug_at_times() -> None:
    class Small(Reference):
        settings = Reference.settings

        def usage(self, job: Job) -> pb.CompletionUsage:
            return pb.CompletionUsage()

    assert overridden(Mutant("small", (), Small)) == ()
    assert overridden(Mutant("counted", (), Counted)) == ("usage",)


@long
def test_servers_say_the_same_each_time_and_to_the_end() -> None:
    first, again = (asyncio.run(transcript(Reference)) for _ in range(2))
    assert first == again
    assert len(first) == 6
    assert all(lines for said in first for lines in said.values())
    gathered = asyncio.run(transcript(Gathering, first))
    assert len(gathered) == 1
    assert gathered != first[:1]


@pytest.mark.parametrize(
    ("server", "condition", "expected"),
    [
        (Counted, "resumed", Standing.LIVE),
        pytest.param(Reference, "resumed", Standing.NOT_SEEN, marks=long),
    ],
)
def test_a_pair_is_a_mutant_of_its_own_when_the_workload_shows_it(
    server: type[Reference], condition: str, expected: Standing
) -> None:
    assert standing(Pair(Mutant("it", ("USE-01",), server), NAMED[condition])) is expected


@long
def test_a_condition_that_the_bug_has_anyway_makes_no_mutant() -> None:
    class Choices(Reference):
        def usage(self, job: Job) -> pb.CompletionUsage:
            return pb.CompletionUsage() if len(job.choices) > 1 else super().usage(job)

    pair = Pair(Mutant("choices", ("SEQ-03",), Choices), NAMED["several_choices"])
    assert standing(pair) is Standing.SAME_AS_FIRST


@long
def test_a_bug_that_shows_without_its_condition_makes_no_mutant() -> None:
    class Shows(Counted):
        def __init__(self) -> None:
            super().__init__()
            self.config.model = "another"

    assert standing(Pair(Mutant("shows", ("USE-01",), Shows), NAMED["resumed"])) is Standing.ALWAYS


@pytest.mark.parametrize(
    ("always", "at_rest", "held", "at_times", "expected"),
    [
        ("right", "right", "resumed", "right", Standing.NOT_SEEN),
        ("wrong", "wrong", "resumed", "wrong", Standing.ALWAYS),
        ("wrong", "right", "sampled", "wrong", Standing.NEVER),
        ("wrong", "right", "resumed", "right", Standing.SAME_AS_CORRECT),
        ("wrong", "right", "resumed", "wrong", Standing.SAME_AS_FIRST),
        ("wrong", "right", "resumed", "wrong at times", Standing.LIVE),
    ],
)
def test_what_servers_say_decides_where_a_pair_stands(
    monkeypatch: pytest.MonkeyPatch, always: str, at_rest: str, held: str, at_times: str, expected: Standing
) -> None:
    monkeypatch.setattr(draw, "_correct", lambda in_runs: "right")
    monkeypatch.setattr(draw, "_always", lambda first, in_runs: always)
    monkeypatch.setattr(draw, "_at_rest", lambda first, in_runs: (at_rest, {held}))
    monkeypatch.setattr(draw, "_said", lambda make, *known: at_times)
    assert standing(Pair(FIRST, NAMED["resumed"])) is expected


def test_pairs_are_drawn_in_an_order_that_the_seed_says() -> None:
    names: list[Sequence[str]] = [[pair.name for pair in pairs(seed)[:20]] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    assert len({pair.name for pair in pairs(1)}) == len(pairs(1)) > 5000


@long
async def test_the_correct_server_that_gathers_is_correct() -> None:
    report = await judged(
        Gathering, selection=Selection(run=["STR-*", "USE-*", "LIM-*", "*/drawn", "MUX-01"])
    )
    assert not report.unexpected
    assert statuses(report)["STR-06/drawn"] is Status.PASS
