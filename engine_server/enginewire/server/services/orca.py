"""Load reports as gRPC's and Envoy's load balancers read them (ORCA): behind each answer, and as a stream.

Imports the package xds-protos, so it is imported only where they were asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport
from xds.service.orca.v3 import orca_pb2

from enginewire import v1 as pb
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.services.handlers import Call

TRAILER: Final = "endpoint-load-metrics-bin"
SERVICE: Final = orca_pb2.DESCRIPTOR.services_by_name["OpenRcaService"]
USUAL_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 0.1
"""Between two reports of a stream: when nothing is asked for, and whatever is asked for."""


def report_of(load: pb.Load, max_num_seqs: int) -> OrcaLoadReport:
    """`application_utilization` is how full the fuller one is, slots or KV cache. Names are vLLM's."""
    cache = load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0
    slots = load.running / max_num_seqs if max_num_seqs else 0.0
    report = OrcaLoadReport(application_utilization=max(cache, slots))
    report.named_metrics["kv_cache_usage_perc"] = cache
    report.named_metrics["num_requests_running"] = load.running
    report.named_metrics["num_requests_waiting"] = load.waiting
    return report


class OrcaServicer:
    """`xds.service.orca.v3.OpenRcaService`: reports without a request."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def report(self) -> OrcaLoadReport:
        """Of this moment."""
        config = self._lifecycle.config or pb.EngineConfig()
        ranks = max(config.data_parallel_size, 1)
        return report_of(self._lifecycle.load(), ranks * config.max_num_seqs)

    def trailer(self) -> tuple[str, bytes]:
        """The same as metadata."""
        return TRAILER, self.report().SerializeToString()

    async def StreamCoreMetrics(
        self, request: orca_pb2.OrcaLoadReportRequest, call: Call
    ) -> AsyncGenerator[OrcaLoadReport, None]:
        """One now, and one after each interval, until the caller leaves."""
        wanted = request.report_interval.ToNanoseconds() / 1e9 or USUAL_SECONDS
        while True:
            yield self.report()
            await asyncio.sleep(max(wanted, LEAST_SECONDS))
