"""Disaggregated pairs: the options, the reference's two roles, and what mutants of one half fail."""

from __future__ import annotations

import asyncio

import pytest

from enginewire.conformance import options
from enginewire.conformance.mutants import Mutant
from enginewire.conformance.mutants.capabilities.disaggregation import DecodeSkipsFirst, PrefillNoHandoff
from enginewire.conformance.proof.matrix import Kill
from enginewire.conformance.proof.self_test import judge, kill
from enginewire.conformance.reference.variants.handoffs import Decode, Prefill
from enginewire.conformance.running.outcome import ExitCode, Report, Status
from enginewire.conformance.running.registry import Phase
from enginewire.conformance.session.run_options import PAIR_RUN, RunOptions
from enginewire.conformance.wire.violation import NotApplicable
from tests.long import long


def test_each_half_of_a_pair_names_the_other() -> None:
    assert (Prefill().other_half(), Decode().other_half()) == (Decode, Prefill)


async def _judge_pairs() -> tuple[Report, Kill, Kill]:
    return await asyncio.gather(
        judge(Decode, frozenset(Phase)),
        kill(Mutant("broken_half", ("DIS-02",), PrefillNoHandoff)),
        kill(Mutant("broken_half", ("DIS-04",), DecodeSkipsFirst)),
    )


@pytest.fixture(scope="module")
def pairs() -> tuple[Report, Kill, Kill]:
    """What became of a correct pair and two broken ones. At once: each waits for a hand-off to expire."""
    return asyncio.run(_judge_pairs())


@long
def test_a_correct_pair_passes(pairs: tuple[Report, Kill, Kill]) -> None:
    report = pairs[0]
    assert report.exit_code(strict=True) is ExitCode.CONFORMANT
    passed = {outcome.key for outcome in report.outcomes if outcome.status is Status.PASS}
    assert {"DIS-01", "DIS-02", "DIS-05", "DIS-07/expired", "DIS-09"} <= passed


@long
@pytest.mark.parametrize(("number", "key"), [(1, "DIS-02"), (2, "DIS-04")])
def test_a_broken_half_fails_its_own_check(pairs: tuple[Report, Kill, Kill], number: int, key: str) -> None:
    done = pairs[number]
    assert isinstance(done, Kill)
    assert (done.is_exact, done.failed) == (True, (key,))


def test_the_target_of_a_pair_is_its_decode_engine() -> None:
    parsed = options.parse(["--prefill", "unix:/a", "--decode", "unix:/b"])
    assert (parsed.target, tuple(parsed.run)) == ("unix:/b", PAIR_RUN)
    assert options.invocation(parsed) == "--prefill unix:/a --decode unix:/b"


@pytest.mark.parametrize(
    "arguments",
    [["--prefill", "unix:/a"], ["--decode", "unix:/b"], ["--prefill", "a", "--decode", "b", "--target", "c"]],
)
def test_half_a_pair_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        options.parse(arguments)


def test_a_check_that_needs_more_adapters_than_given_does_not_apply() -> None:
    assert RunOptions(adapters=("a", "b", "c")).sources(2) == ("a", "b")
    with pytest.raises(NotApplicable):
        RunOptions(adapters=("a",)).sources(2)
