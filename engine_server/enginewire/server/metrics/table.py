"""The table of live requests, for a server that exports metrics.

Only tells `RequestMetrics` of what happens there. Without metrics the server has the plain table, so that
nobody pays for a count that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from enginewire import v1 as pb
from enginewire.server.admission.adapters import AdapterTable
from enginewire.server.admission.delivery import Sink
from enginewire.server.admission.embedding import EmbeddingWork
from enginewire.server.admission.live import Live
from enginewire.server.admission.queue_limits import QueueLimits
from enginewire.server.admission.table import Accepted, Failed, RequestTable
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import EngineError
from enginewire.server.metrics.requests import RequestMetrics


class CountingTable(RequestTable):
    """A `RequestTable` whose requests are counted."""

    def __init__(
        self,
        limits: QueueLimits,
        metrics: RequestMetrics,
        *,
        log_requests: bool = False,
        adapters: AdapterTable | None = None,
        check_engine: bool = False,
    ) -> None:
        super().__init__(limits, log_requests=log_requests, adapters=adapters, check_engine=check_engine)
        self._metrics = metrics

    async def prepare(self, request: pb.GenerateRequest) -> None:
        """As in the plain table."""
        with self._counting_refusals():
            await super().prepare(request)

    def submit(self, request: pb.GenerateRequest, sink: Sink, deadline: float | None) -> GenerateContext:
        """As in the plain table."""
        with self._counting_refusals():
            return super().submit(request, sink, deadline)

    def _hand_out(self, outputs: StepOutputs) -> None:
        self._metrics.step(outputs)
        super()._hand_out(outputs)

    def _begin_embedding(
        self, request: pb.EmbedRequest, deadline: float | None, routing: pb.RoutingHints
    ) -> tuple[EmbeddingWork, Live]:
        with self._counting_refusals():
            return super()._begin_embedding(request, deadline, routing)

    def _enter(self, live: Live, request: Accepted) -> None:
        super()._enter(live, request)
        self._metrics.accepted(live.context, request)

    def _leave(self, live: Live, usage: pb.CompletionUsage, failed: Failed) -> None:
        super()._leave(live, usage, failed)
        self._metrics.ended(live, usage, failed)

    def _give_up(self, live: Live) -> None:
        super()._give_up(live)
        self._metrics.slow()

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except EngineError as failure:
            self._metrics.refused(failure.reason)
            raise
