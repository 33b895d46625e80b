"""Engines that are correct and unlike the usual ones: nothing they do is an alarm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.running.selection import Selection
from tests.conformance.judging import judged, statuses


class SmallWindow(Reference):
    """Three blocks and a few tokens."""

    settings = replace(Settings(), context_length=64)


class TinyWindow(Reference):
    """One block."""

    settings = replace(Settings(), context_length=32)


class OneChoice(Reference):
    """Advertises several choices, and allows one."""

    settings = replace(Settings(), limits={"max_n": 1})


class SmallVocabulary(Reference):
    """Where prompts that are drawn carelessly are soon the same."""

    settings = replace(Settings(), vocab_size=32)


@pytest.mark.parametrize(
    ("server", "passes", "says_nothing"),
    [
        (SmallWindow, ("PRB-04", "USE-06", "MUX-11", "SAM-05", "KVE-03", "KVE-04", "KVE-08"), ()),
        (TinyWindow, ("PRB-04", "USE-06"), ("KVE-03", "KVE-08", "STP-07")),
        (OneChoice, ("ABO-01", "INF-09"), ("MUX-01/choices", "RES-08")),
        (SmallVocabulary, ("PRB-04", "USE-06", "KVE-03", "STP-01", "SAM-07"), ()),
    ],
)
async def test_a_correct_engine_is_not_blamed(
    server: type[Reference], passes: tuple[str, ...], says_nothing: tuple[str, ...]
) -> None:
    report = await judged(server, selection=Selection(run=[*passes, *says_nothing]))
    seen = {key: status for key, status in statuses(report).items() if key in {*passes, *says_nothing}}
    assert {key for key in passes if seen[key] is not Status.PASS} == set(), report.unexpected
    assert {key for key in says_nothing if seen[key] is not Status.NOT_APPLICABLE} == set()
