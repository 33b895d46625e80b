from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire.conformance.checks.options import thinking
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import CAPABILITIES, Settings
from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.running.registry import Check
from tests.conformance.judging import judged


async def outcome(settings: Settings) -> Outcome:
    """What becomes of the check at such an engine."""
    server = type("Server", (Reference,), {"settings": settings})
    report = await judged(server, [Check("STP-09", thinking.each_section_has_its_limit)])
    return next(each for each in report.outcomes if each.key == "STP-09")


def marked(opening: int, closing: int) -> Settings:
    return replace(Settings(), thinking_token_ids=(opening, closing))


@pytest.mark.parametrize("window", [32, 2048])
@pytest.mark.parametrize("marks", [(3, 4), (4, 3), (0, 127), (126, 127), (60, 64)])
async def test_the_tokens_of_a_section_are_found_wherever_they_are(
    marks: tuple[int, int], window: int
) -> None:
    assert (await outcome(replace(marked(*marks), context_length=window))).status is Status.PASS


async def test_of_a_large_vocabulary_only_the_end_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinking, "TOGETHER", 16)
    monkeypatch.setattr(thinking, "PROMPTS", 2)
    assert (await outcome(marked(126, 127))).status is Status.PASS
    seen = await outcome(marked(3, 4))
    assert seen.status is Status.NOT_APPLICABLE
    assert seen.message == "no token that opens a thinking section is among the last of the vocabulary"


async def test_where_no_token_can_be_made_to_come_nothing_is_judged() -> None:
    rest = tuple({*CAPABILITIES} - {"logit_bias", "allowed_token_ids"})
    assert (await outcome(replace(Settings(), capabilities=rest))).status is Status.NOT_APPLICABLE
