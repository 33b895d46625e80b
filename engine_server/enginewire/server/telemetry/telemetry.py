"""Metrics, traces, statistics and audit log of one server, each if asked for: made, opened, closed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from enginewire import v1 as pb
from enginewire.access.access import Access
from enginewire.access.audit import AuditLog
from enginewire.metrics.stats_line import StatsLine
from enginewire.server.admission.observer import Observer, Several
from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.interface import MetricsContext
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.telemetry.audited import AuditedRequests
from enginewire.server.telemetry.prompt_counts import PromptCounts

if TYPE_CHECKING:
    from enginewire.server.telemetry.metrics.exporter import MetricsExporter
    from enginewire.server.telemetry.spans import RequestSpans
    from enginewire.tracing.exporting import SpanExport


log = logging.getLogger(__name__)


class Telemetry:
    """Give `observer` to the table of a server, `metrics_context` to its lifecycle, and then `show` that."""

    def __init__(self, options: ServerOptions, instance_id: str, audit: AuditLog | None) -> None:
        self._options = options
        self.metrics: MetricsExporter | None = None
        self._spans: RequestSpans | None = None
        self._export: SpanExport | None = None
        self._prompts = None if options.disable_log_stats else PromptCounts()
        told: list[Observer] = [self._prompts] if self._prompts else []
        if options.metrics_port is not None:
            from enginewire.server.telemetry.metrics.exporter import MetricsExporter

            self.metrics = MetricsExporter(options.metrics_prefix)
            told.append(self.metrics.requests)
        if audit is not None:
            told.append(AuditedRequests(audit))
        if options.otlp_traces_endpoint:
            from enginewire.server.telemetry.spans import RequestSpans
            from enginewire.tracing.exporting import SpanExport

            self._export = SpanExport(options.otlp_traces_endpoint, "enginewire-engine", instance_id)
            self._spans = RequestSpans(self._export.tracer)
            told.append(self._spans)
        self.observer = told[0] if len(told) == 1 else Several(told) if told else Observer()

    @property
    def metrics_context(self) -> MetricsContext | None:
        """For an engine that adds its own."""
        return None if self.metrics is None else self.metrics.context

    def show(self, lifecycle: Lifecycle, access: Access) -> None:
        """Show the state of a server, from its beginning."""
        if self.metrics is not None:
            self.metrics.show(lifecycle, access)

    async def open(self, access: Access) -> None:
        """Listen where metrics are asked for. Raises AddressError."""
        if self.metrics is not None and self._options.metrics_port is not None:
            await self.metrics.open(self._options.host, self._options.metrics_port, access)

    def started(self, config: pb.EngineConfig) -> None:
        """The engine is up."""
        if self._spans is not None:
            self._spans.model = config.served_model_name or config.model

    async def log_stats(self, lifecycle: Lifecycle) -> None:
        """Until it is cancelled, unless nobody wants them."""
        if (prompts := self._prompts) is not None:
            await StatsLine().log_for_ever(log, lambda: prompts.seen_with(lifecycle.known_load()))

    async def close(self) -> None:
        """Show nothing more, and send the last spans."""
        if self.metrics is not None:
            self.metrics.close()
        if self._export is not None:
            await self._export.close()
