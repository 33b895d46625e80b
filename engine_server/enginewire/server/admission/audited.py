"""The audit log's view of requests: a line for each, whichever RPC it came by, when it has ended or was
refused."""

from __future__ import annotations

import time

from enginewire import v1 as pb
from enginewire.access.audit import AuditLog
from enginewire.access.caller import Party
from enginewire.server.admission.live import Accepted, Failed, Live, Observer
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import EngineError
from enginewire.server.validation.payloads import prompt_length

REQUEST_METHODS = frozenset(
    {
        "/enginewire.v1.EngineService/Generate",
        "/enginewire.v1.EngineService/GenerateMultiplexed",
        "/enginewire.v1.EmbeddingService/Embed",
    }
)
GENERATE, EMBED = "generate", "embed"


class AuditedRequests(Observer):
    """Writes down what another observer is told too."""

    def __init__(self, audit: AuditLog, other: Observer) -> None:
        self._audit = audit
        self._other = other
        self._prompts: dict[GenerateContext, tuple[str, int]] = {}

    def accepted(self, context: GenerateContext, request: Accepted) -> None:
        """A request is in the engine."""
        self._other.accepted(context, request)
        if isinstance(request, pb.PreprocessedRequest):
            self._prompts[context] = GENERATE, prompt_length(request)
        else:
            self._prompts[context] = EMBED, sum(len(each.token_ids) for each in request.token_ids)

    def refused(self, failure: EngineError, request_id: str, party: Party) -> None:
        """A request was not let in."""
        self._other.refused(failure, request_id, party)
        outcome = _word(failure.reason)
        self._audit.call(
            who=party.tenant, method="request", outcome=outcome, seconds=0.0, request_id=request_id[:128]
        )

    def step(self, outputs: StepOutputs) -> None:
        """What one step produced."""
        self._other.step(outputs)

    def slow(self) -> None:
        """A reader was given up."""
        self._other.slow()

    def ended(self, live: Live, usage: pb.CompletionUsage, failed: Failed) -> None:
        """A request has ended."""
        self._other.ended(live, usage, failed)
        method, prompt_tokens = self._prompts.pop(live.context)
        now, began = time.monotonic(), live.context.running_since
        cancelled = "CANCELLED" if live.context.is_cancelled else "OK"
        self._audit.call(
            who=live.party.tenant,
            method=method,
            request_id=live.context.request_id,
            outcome=cancelled if failed is None else _word(failed),
            prompt_tokens=prompt_tokens,
            completion_tokens=usage.completion_tokens if usage.total_tokens else None,
            waited=None if began is None else round(max(began - live.accepted_at, 0.0), 6),
            seconds=now - live.accepted_at,
        )


def _word(reason: pb.ErrorReason.ValueType) -> str:
    return pb.ErrorReason.Name(reason).removeprefix("ERROR_REASON_")
