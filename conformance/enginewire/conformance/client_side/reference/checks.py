"""What the reference backend refuses before it asks the engine, in methods that a mutant can override."""

from __future__ import annotations

from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.failure import Failed

MOST_ANNOTATIONS: Final = 64
LONGEST_ANNOTATION: Final = 1024
"""Bytes, as those of JSON."""
MOST_JSON: Final = 65536


class Checks:
    """Of a request, by a backend of one engine."""

    info: pb.GetEngineInfoResponse
    """Of the engine."""

    def check_request(self, part: pb.PreprocessedRequest) -> None:
        """Raise Failed for what no backend can honour."""
        stops = part.stop_conditions
        if any(not stop for stop in stops.stop):
            raise self.invalid("stop_conditions.stop", "empty")
        if stops.HasField("max_tokens") and stops.min_tokens > stops.max_tokens:
            raise self.invalid("stop_conditions.min_tokens", "above max_tokens")

    def check_opaque(self, part: pb.PreprocessedRequest) -> None:
        """Raise Failed for more of what nobody may read than there may be."""
        if len(part.annotations) > MOST_ANNOTATIONS:
            raise self.invalid("annotations", "too many")
        if any(len(each.encode()) > LONGEST_ANNOTATION for each in part.annotations):
            raise self.invalid("annotations", "too long")
        for path, json in (
            ("extra_args", part.extra_args),
            ("agent_context.extra", part.agent_context.extra),
            ("router_config_override.extra", part.router_config_override.extra),
        ):
            if len(json) > MOST_JSON:
                raise self.invalid(path, "too long")

    def check_workers(self, routing: pb.RoutingHints) -> None:
        """Raise Failed for workers that are not the engine."""
        for name in ("backend_instance_id", "decode_worker_id", "prefill_worker_id"):
            is_named = name in {field.name for field, _ in routing.ListFields()}
            if is_named and (name == "prefill_worker_id" or getattr(routing, name) != self.info.worker_id):
                raise self.invalid(f"routing.{name}", "nobody here")
        if routing.allowed_worker_ids and self.info.worker_id not in routing.allowed_worker_ids:
            raise self.invalid("routing.allowed_worker_ids", "nobody here")

    def invalid(self, field: str, message: str) -> Failed:
        """A refusal that names the field."""
        return Failed(
            grpc.StatusCode.INVALID_ARGUMENT,
            pb.ERROR_REASON_INVALID_REQUEST,
            f"{field}: {message}",
            field=field,
        )
