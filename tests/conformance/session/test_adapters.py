from __future__ import annotations

import pytest

from enginewire.conformance.reference.capabilities.adapters import SOURCES
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.session.adapters import loaded
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.wire.violation import Violation
from tests.conformance.judging import judged, made_up, statuses

ADAPTERS = RunOptions(adapters=SOURCES, companies=0)


@pytest.mark.parametrize("is_crowded", [False, True], ids=["alone", "in a full engine"])
async def test_an_adapter_does_not_outlast_its_check_whose_request_still_runs(is_crowded: bool) -> None:
    server, were_loaded = Reference(), list[int]()

    async def breaks_off(ctx: Context) -> None:
        ctx.client.is_crowded = is_crowded
        async with loaded(ctx, SOURCES[:2]) as names:
            were_loaded.append(len(server.adapters))
            await ctx.start(ctx.long_request(lora_name=names[0])).first_token()
            raise Violation("this is what is told")

    report = await judged(lambda: server, [made_up("STR-01", breaks_off)], options=ADAPTERS)
    assert statuses(report)["STR-01"] is Status.FAIL
    assert [each.message for each in report.unexpected] == ["this is what is told"]
    # On a machine that got busy it is judged once more.
    assert (set(were_loaded), server.adapters) == ({2}, {})
