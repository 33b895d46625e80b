"""What a backend does right now and has done since it began: live requests, those that ended last, totals.

Knows nothing about who looks at it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from enginewire import v1 as pb
from enginewire.access.audit import AuditLog
from enginewire.access.caller import caller
from enginewire.backend.activity.live_request import EndedRequest, LiveRequest
from enginewire.backend.activity.totals import Totals
from enginewire.backend.replay.attempts import Attempts
from enginewire.metrics.stats_line import Seen

# Enough to see what has just happened, and small beside anything else a request costs.
MAX_ENDED: Final = 20


class Activity:
    """The live requests of one backend, oldest first, those that ended last, and its totals."""

    def __init__(self) -> None:
        self.totals = Totals()
        # Keyed by identity: two callers may choose the same id, and the engine is who refuses that.
        self._live: dict[int, LiveRequest] = {}
        self._ended: deque[EndedRequest] = deque(maxlen=MAX_ENDED)
        self.audit: AuditLog | None = None

    @property
    def live(self) -> Sequence[LiveRequest]:
        """Oldest first."""
        return list(self._live.values())

    @property
    def ended(self) -> Sequence[EndedRequest]:
        """The last ones, newest first."""
        return list(reversed(self._ended))

    @property
    def generated_tokens(self) -> int:
        """Tokens passed on since the start of this process."""
        return self.totals.ended_tokens + sum(live.num_tokens for live in self._live.values())

    def seen(self) -> Seen:
        """One look, for the line of statistics. Whoever has no token yet waits, here or at an engine."""
        totals, running = self.totals, sum(live.first_token_at is not None for live in self._live.values())
        return Seen(
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_prompt_tokens,
            generated_tokens=self.generated_tokens,
            running=running,
            waiting=len(self._live) - running,
            failed=totals.failed.total() - totals.failed[pb.ERROR_REASON_CANCELLED],
        )

    def begin(self, attempts: Attempts, request: pb.PreprocessedRequest, face: str = "") -> LiveRequest:
        """A caller asks, by way of `face`."""
        live = LiveRequest(attempts, request, self.totals, face)
        self._live[id(live)] = live
        return live

    def end(self, live: LiveRequest, detokenize_seconds: float) -> EndedRequest:
        """A request has ended."""
        del self._live[id(live)]
        ended = live.end()
        self._ended.append(ended)
        if self.audit is not None:
            self._tell(self.audit, live, ended)
        self.totals.detokenize_seconds += detokenize_seconds
        return ended

    def _tell(self, audit: AuditLog, live: LiveRequest, ended: EndedRequest) -> None:
        audit.call(
            who=live.party.tenant,
            method=f"generate over {ended.face}" if ended.face else "generate",
            request_id=ended.request_id[:128],
            outcome=ended.outcome,
            prompt_tokens=ended.num_prompt_tokens,
            completion_tokens=ended.num_tokens,
            choices=ended.num_choices,
            first_token=None if ended.ttft is None else round(ended.ttft, 6),
            seconds=ended.seconds,
        )

    def abort(self, request_id: str, reason: str) -> int:
        """End every live request of that id that the caller may end; how many there were."""
        found = [live for live in self.live if live.request_id == request_id and caller().may_end(live.owner)]
        for live in found:
            live.abort(reason)
        return len(found)
