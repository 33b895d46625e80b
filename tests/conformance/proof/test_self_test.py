from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from enginewire.conformance.__main__ import main
from enginewire.conformance.client_side.reference.backend import ReferenceBackend
from enginewire.conformance.mutants import Mutant
from enginewire.conformance.mutants.options.limits import MinGtMaxOk, OneTooMany
from enginewire.conformance.proof import self_test
from enginewire.conformance.proof.matrix import Kill
from enginewire.conformance.proof.self_test import is_in_passing, judge, kill
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.variants.handoffs import Decode
from enginewire.conformance.reference.variants.keyed import Keyed
from enginewire.conformance.reference.variants.on_tls import OnTls
from enginewire.conformance.reference.variants.traced import Traced
from enginewire.conformance.running.outcome import Report
from enginewire.conformance.running.registry import Phase
from enginewire.conformance.session.session import Unreachable
from tests.long import long


async def test_a_mutant_is_killed_by_its_check_and_no_other() -> None:
    done = await kill(Mutant("one_too_many", ("LIM-01",), OneTooMany), quick=True)
    assert (done.is_exact, done.failed) == (True, ("LIM-01",))


@long
async def test_a_mutant_that_nothing_notices_is_alive() -> None:
    done = await kill(Mutant("not_broken", ("LIM-01",), Reference), quick=True)
    assert (done.is_killed, done.failed) == (False, ())


@long
async def test_a_mutant_killed_by_another_check_is_not_exact() -> None:
    done = await kill(Mutant("min_gt_max_ok", ("LIM-01",), MinGtMaxOk), quick=True)
    assert (done.is_killed, done.is_exact) == (False, False)
    assert done.surprises[0].startswith("LIM-07: the request was not refused as it must be, seen: OK after ")


def test_what_the_monitor_sees_of_a_mutants_own_ids_or_of_those_it_names_is_no_surprise() -> None:
    one = Mutant("one_too_many", ("LIM-01", "USE-03/seen"), OneTooMany, also=("STR-06/seen",))
    for key, expected in {
        "LIM-01/seen": True,
        "STR-06/seen": True,
        "LIM-02/seen": False,
        "LIM-01": False,
        "USE-03/seen": False,
    }.items():
        assert is_in_passing(key, one) is expected, key


@pytest.fixture
def take_for_references(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`take_for_references(server)`: one check against it. Elsewhere the real ones are judged by all."""

    def take(server: type[Reference]) -> None:
        async def judge_one() -> list[Report]:
            return [await judge(server, frozenset({Phase.SAFE}), run=["LIM-01"])]

        monkeypatch.setattr(self_test, "_judge_references", judge_one)

    return take


def test_the_summary_ends_the_output(
    take_for_references: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    take_for_references(Reference)
    assert main(["self-test", "--json", "--workers", "1", "--quick", "--run", "total_wrong"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["mutants"], summary["exact_kills"]) == (1, 1)
    assert summary["kills"] == {"total_wrong": ["USE-03"]}
    assert (summary["failed_by_reference"], summary["unreachable"]) == ([], [])


def test_a_reference_that_fails_a_check_fails_the_proof(
    take_for_references: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    take_for_references(OneTooMany)
    assert main(["self-test", "--json", "--workers", "1", "--run", "no_such_mutant"]) == 1
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["failed_by_reference"] == ["LIM-01", "LIM-01/seen"]


def test_a_kill_that_is_not_exact_fails_the_proof(
    monkeypatch: pytest.MonkeyPatch,
    take_for_references: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    take_for_references(Reference)
    also = Mutant("also_refuses", ("LIM-01",), OneTooMany)
    monkeypatch.setattr(self_test, "everything_broken", lambda: [also])
    killed = Kill(name=also.name, expected=also.kills, failed=("LIM-01", "LIM-02"), faults=(), seconds=0.1)
    monkeypatch.setattr(self_test, "kill_all", lambda names, quick: [killed])
    assert main(["self-test", "--json", "--workers", "1", "--run", "also_refuses"]) == 1
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["alive"], summary["inexact"]) == ([], ["also_refuses"])


async def test_the_references_are_an_engine_half_a_pair_one_with_keys_and_a_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[object] = []

    async def note(*given: object, run: tuple[str, ...] = ()) -> Report:
        judged.append((*given, *run))
        return Report(target="", invocation="")

    monkeypatch.setattr(self_test, "judge", note)
    monkeypatch.setattr(self_test, "judge_backend", note)
    assert len(await self_test._judge_references()) == 6
    assert judged == [
        (Reference, frozenset(Phase)),
        (Decode, frozenset(Phase)),
        (Keyed, frozenset({Phase.SAFE}), "SEC-*"),
        (OnTls, frozenset({Phase.SAFE}), "TLS-*"),
        (Traced, frozenset({Phase.SAFE, Phase.LOAD}), "MDT-02", "MDT-02/*", "TRC-*"),
        (ReferenceBackend,),
    ]


async def test_a_mutant_that_nobody_reaches_is_a_fault_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*arguments: object, **options: object) -> Report:
        raise Unreachable("nothing listens at unix:/nowhere.sock")

    monkeypatch.setattr(self_test, "judge", unreachable)
    done = await kill(Mutant("one_too_many", ("LIM-01",), OneTooMany))
    assert (done.is_killed, done.faults) == (False, ("nothing listens at unix:/nowhere.sock",))


def test_a_reference_that_nobody_reaches_fails_the_proof(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def unreachable(*arguments: object, **options: object) -> Report:
        raise Unreachable("nothing listens at unix:/nowhere.sock")

    monkeypatch.setattr(self_test, "judge", unreachable)
    monkeypatch.setattr(self_test, "judge_backend", unreachable)
    monkeypatch.setattr(self_test, "_adversary_passes", dict)
    assert main(["self-test", "--workers", "1", "--run", "no_such_mutant"]) == 1
    assert "nothing listens at unix:/nowhere.sock" in capsys.readouterr().out


def test_shards_have_every_mutant_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*arguments: object, **options: object) -> Report:
        raise Unreachable("nothing listens")

    judged: list[str] = []
    monkeypatch.setattr(self_test, "judge", unreachable)
    monkeypatch.setattr(self_test, "judge_backend", unreachable)
    monkeypatch.setattr(self_test, "_adversary_passes", dict)
    monkeypatch.setattr(self_test, "kill_all", lambda names, quick: judged.extend(names) or [])
    for part in (1, 2, 3):
        main(["self-test", "--workers", "1", "--shard", f"{part}/3"])
    assert sorted(judged) == sorted(mutant.name for mutant in self_test.everything_broken())
