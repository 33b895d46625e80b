"""The trace of one request while engines are asked. This one makes no spans: it passes the caller's on.

Knows nothing about opentelemetry.
"""

from __future__ import annotations

from collections.abc import Mapping

from enginewire import v1 as pb
from enginewire.backend.engines.failure import Failure
from enginewire.tracing.trace_context import add_link

Asked = pb.PreprocessedRequest | pb.PreprocessedEmbeddingRequest


class Sent:
    """The request, sent to one engine with this `metadata`; None is also that it was sent to nobody."""

    __slots__ = ("metadata",)

    def __init__(self, metadata: Mapping[str, str] | None) -> None:
        self.metadata = metadata

    def link(self, part: pb.PreprocessedRequest) -> None:
        """Point at this from what is sent after it."""
        add_link(part, self.metadata)

    def end(self, failure: Failure | None = None) -> None:
        """Nothing more comes of that engine. The first end counts."""


class Trace:
    """One request of a caller."""

    def __init__(self, metadata: Mapping[str, str] | None) -> None:
        """`metadata` is what came with it."""
        self._sent = Sent(metadata)

    def send(self, target: str, after: Sent, *, is_prefill: bool = False) -> Sent:
        """It is about to be sent to the engine at `target`, in the place of or behind `after`."""
        return self._sent

    def end(
        self, request_id: str, num_prompt_tokens: int, num_tokens: int, outcome: str, ttft: float | None
    ) -> None:
        """The caller has everything, or has left. `outcome` has the finish reasons; `ttft` is in seconds."""

    def fail(self, failure: Failure) -> None:
        """It ended with this."""


class Tracing:
    """Makes the traces of requests."""

    def begin(self, metadata: Mapping[str, str] | None, request: Asked, face: str = "") -> Trace:
        """Of a request that came with `metadata` by way of `face`."""
        return Trace(metadata)
