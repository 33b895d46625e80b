"""When a choice has to end: the contract's table of stop conditions on known tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from enginewire import v1 as pb
from enginewire.conformance.oracle.case import Case
from enginewire.conformance.session.context import Greedy


@dataclass(frozen=True, slots=True)
class Ending:
    """`count`: output tokens, the last one and those handed in included. `token`: what stop_match names."""

    count: int
    reason: pb.FinishReason.ValueType
    token: int | None = None

    @property
    def stop_match(self) -> pb.StopMatch:
        """As the terminal output has it; empty where nothing is to be named."""
        return pb.StopMatch() if self.token is None else pb.StopMatch(token_id=self.token)


def system_ids(case: Case, of_engine: Iterable[int]) -> set[int]:
    """Ids that end a choice with EOS; those `of_engine` hold where the request has none."""
    if case.ignore_eos:
        return set()
    return {*(case.eos_token_ids or of_engine), *case.stop_token_ids_hidden}


def caller_ids(case: Case) -> set[int]:
    """Ids that end a choice with STOP, whatever is ignored."""
    return {*case.stop_token_ids, *case.stop_token_ids_visible}


def ending(case: Case, tokens: Sequence[int], of_engine: Iterable[int]) -> Ending | None:
    """How a choice with these output tokens ends; None when none of them ends it.

    | the token                                         | ends with | stop_match |
    | in an EOS list, and no fewer than min_tokens      | EOS       | none       |
    | in a list of the caller, and no fewer than that   | STOP      | the token  |
    | otherwise the one that makes max_tokens           | LENGTH    | none       |
    """
    system, caller = system_ids(case, of_engine), caller_ids(case)
    for count, token in enumerate(tokens, 1):
        if count >= case.min_tokens and token in system:
            return Ending(count, pb.FINISH_REASON_EOS)
        if count >= case.min_tokens and token in caller:
            return Ending(count, pb.FINISH_REASON_STOP, token)
        if count == case.max_tokens:
            return Ending(count, pb.FINISH_REASON_LENGTH)
    return None


def certain(case: Case, tokens: Sequence[int], of_engine: Iterable[int]) -> int:
    """How many tokens of a greedy run come anyway: below min_tokens an engine may leave stop ids out.

    Ignored ones too: that they end nothing does not say that they have to come.
    """
    stops = system_ids(replace(case, ignore_eos=False), of_engine) | caller_ids(case)
    early = [place for place, token in enumerate(tokens[: max(case.min_tokens - 1, 0)]) if token in stops]
    return min(early, default=len(tokens))


def is_possible(case: Case, run: Greedy, of_engine: Sequence[int], *, may_be_over: bool = True) -> bool:
    """False for a request that would be refused, or whose outcome nothing tells.

    Unless it `may_be_over`, also for one with a choice that had all its tokens and is not finished.
    """
    if not (1 <= case.max_tokens <= len(run.tokens) and case.min_tokens <= case.max_tokens):
        return False
    dues = [ending(case, run.of(index), of_engine) for index in range(case.n)]
    counts = [due.count for due in dues if due]
    if len(counts) < case.n or not case.live or any(index >= len(case.resumed) for index in case.finished):
        return False
    resumed = enumerate(zip(case.resumed, counts, strict=False))
    return all(0 < cut < count + (may_be_over or index in case.finished) for index, (cut, count) in resumed)
