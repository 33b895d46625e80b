"""The proof of the client side: every broken backend fails exactly the checks it should.

Runs in one process and loop with whatever else proves the kit.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginewire.conformance.client_side.checks import client_checks
from enginewire.conformance.client_side.judge import judge
from enginewire.conformance.client_side.mutants.registry import ClientMutant
from enginewire.conformance.client_side.reference.backend import ReferenceBackend
from enginewire.conformance.client_side.stage.stands import InProcessStarter
from enginewire.conformance.reference.adversaries import Adversary
from enginewire.conformance.running.outcome import Report, Status
from enginewire.conformance.running.selection import Selection


async def judge_reference(run: Sequence[str] = ()) -> Report:
    """The kit against the reference backend; `run`: only these checks."""
    return await judge(InProcessStarter(ReferenceBackend), Selection(run=run))


async def judge_mutant(mutant: ClientMutant) -> Report:
    """The kit against a broken backend."""
    spared = [check.key for check in client_checks() if check.is_costly and check.key not in mutant.kills]
    return await judge(InProcessStarter(mutant.backend), Selection(skip=spared))


async def passes_of(adversary: str, time_scale: float) -> int:
    """How many checks a server passes that is no backend at all."""
    starter = InProcessStarter(lambda engine: Adversary(adversary))
    report = await judge(starter, Selection(), time_scale=time_scale)
    return report.counts[Status.PASS]
