"""Load reports as gRPC's and Envoy's load balancers read them (ORCA): behind each answer, and as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from enginewire import v1 as pb
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.services.handlers import Call
from enginewire.server.services.orca_messages import OrcaLoadReport

TRAILER: Final = "endpoint-load-metrics-bin"
USUAL_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 0.1
"""Between two reports of a stream: when nothing is asked for, and whatever is asked for."""


def report_of(load: pb.Load, max_num_seqs: int) -> Any:
    """`application_utilization` is how full the fuller one is, slots or KV cache. Names are vLLM's."""
    cache = load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0
    slots = load.running / max_num_seqs if max_num_seqs else 0.0
    report = OrcaLoadReport(application_utilization=max(cache, slots))
    report.named_metrics.add(key="kv_cache_usage_perc", value=cache)
    report.named_metrics.add(key="num_requests_running", value=load.running)
    report.named_metrics.add(key="num_requests_waiting", value=load.waiting)
    return report


class OrcaServicer:
    """`xds.service.orca.v3.OpenRcaService`: reports without a request."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def report(self) -> Any:
        """Of this moment."""
        config = self._lifecycle.config or pb.EngineConfig()
        ranks = max(config.data_parallel_size, 1)
        return report_of(self._lifecycle.load(), ranks * config.max_num_seqs)

    def trailer(self) -> tuple[str, bytes]:
        """The same as metadata."""
        return TRAILER, self.report().SerializeToString()

    async def StreamCoreMetrics(self, request: Any, call: Call) -> AsyncGenerator[Any, None]:
        """One now, and one after each interval, until the caller leaves."""
        interval = request.report_interval
        wanted = interval.seconds + interval.nanos / 1e9 or USUAL_SECONDS
        while True:
            yield self.report()
            await asyncio.sleep(max(wanted, LEAST_SECONDS))
