"""The audit log's view of requests: a line for each, whichever RPC it came by, when it has ended or was
refused."""

from __future__ import annotations

import time

from enginewire import v1 as pb
from enginewire.access.audit import AuditLog
from enginewire.server.admission.live import Accepted, Failed, Live
from enginewire.server.admission.observer import Observer
from enginewire.server.admission.origin import Origin
from enginewire.server.engines.interface import GenerateContext
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
    """Writes down what becomes of each."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._prompts: dict[GenerateContext, tuple[str, int]] = {}

    def accepted(self, context: GenerateContext, request: Accepted) -> None:
        """A request is in the engine."""
        if isinstance(request, pb.PreprocessedRequest):
            self._prompts[context] = GENERATE, prompt_length(request)
        else:
            self._prompts[context] = EMBED, sum(len(each.token_ids) for each in request.token_ids)

    def refused(self, request_id: str, request: Accepted, origin: Origin, why: EngineError) -> None:
        """A request was not let in."""
        outcome = _word(why.reason)
        self._audit.call(
            who=origin.party.tenant,
            method="request",
            outcome=outcome,
            seconds=0.0,
            request_id=request_id[:128],
        )

    def ended(self, live: Live, usage: pb.CompletionUsage, failed: Failed) -> None:
        """A request has ended."""
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
