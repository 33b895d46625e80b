"""Answers with tokens that their requests forbid."""

from __future__ import annotations

from enginewire import v1 as pb
from tests.conformance.running.monitor.cases.register import RESUMED, TWO, output

PAIR = [pb.TokenSequence(token_ids=[22, 23])]


def nothing(made: list[pb.LLMEngineOutput]) -> None:
    """The request alone is another one."""


output("only_allowed_ids_come", "the second choice", nothing, n=2, allowed_token_ids=TWO[0])
output("bad_words_do_not_come", "in the second choice", nothing, n=2, bad_words_token_ids=PAIR)
output(
    "bad_words_do_not_come",
    "begins in what was handed in",
    nothing,
    resume=RESUMED,
    bad_words_token_ids=[pb.TokenSequence(token_ids=[9, 11])],
)
