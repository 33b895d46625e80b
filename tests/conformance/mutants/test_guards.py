"""Servers behind TLS, and those that tell of their requests: right ones pass, and wrong ones are found."""

from __future__ import annotations

import pytest

from enginewire.conformance.mutants import mutants
from enginewire.conformance.proof.self_test import judge, kill
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.variants.on_tls import OnTls
from enginewire.conformance.reference.variants.traced import Traced
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.running.registry import Phase
from tests.long import long_but

BROKEN = {
    mutant.name: mutant
    for mutant in mutants()
    if mutant.server.__module__.endswith((".encryption", ".tracing"))
}
QUICK = ["plain_text_beside_tls", "spans_tell_metadata"]


@pytest.mark.parametrize(("server", "run"), [(OnTls, ("TLS-*",)), (Traced, ("MDT-02*", "TRC-*"))])
async def test_the_references_pass(server: type[Reference], run: tuple[str, ...]) -> None:
    report = await judge(server, frozenset({Phase.SAFE}), run=run, companies=0)
    assert report.unexpected == []
    assert report.counts[Status.PASS] >= 6


@pytest.mark.parametrize("name", long_but(QUICK, sorted(BROKEN)))
async def test_each_mistake_is_found_and_no_other(name: str) -> None:
    done = await kill(BROKEN[name], quick=True)
    assert (done.is_exact, done.surprises) == (True, ())
