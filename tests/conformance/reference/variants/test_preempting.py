from __future__ import annotations

from enginewire.conformance.reference.variants.preempting import Preempting
from enginewire.conformance.session.requests import change, good_request

PROMPT = list(range(40))


async def test_what_is_found_when_a_job_has_memory_again_is_not_counted() -> None:
    server = Preempting()
    first, again = (
        server.job(name, change(good_request(name, PROMPT), max_tokens=40).request) for name in "ab"
    )
    for job in (first, again):
        server.admit(job)
    server.schedule(0)
    server.preempt(again)
    server.abort(first)
    server.schedule(0)
    assert again.is_running
    assert server.cache
    assert again.cached_tokens == 0
