"""The option by which a server of ours sends traces. Its name is vLLM's; the rest is OpenTelemetry's own.

Knows nothing about spans.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from enginewire.options import OptionError, option

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
EXPORTERS: Final = {
    GRPC: "opentelemetry.exporter.otlp.proto.grpc",
    HTTP: "opentelemetry.exporter.otlp.proto.http",
}
_ENDPOINT: Final = re.compile(r"((https?|grpc)://)?[^\s/:@]+(:\d{1,5})?(/\S*)?|https?://\[[0-9a-fA-F:]+\]\S*")


@dataclass(frozen=True, kw_only=True)
class TracingOptions:
    """What every program takes that sends traces."""

    otlp_traces_endpoint: str = option(
        "",
        "send traces there over OTLP, such as http://127.0.0.1:4317; how, sampling and the rest are told by"
        " OpenTelemetry's own OTEL_ variables",
        heading="traces",
    )


def check_tracing(options: TracingOptions) -> None:
    """Raises OptionError for an endpoint that is none, and where a package is missing."""
    endpoint = options.otlp_traces_endpoint
    if not endpoint:
        return
    if not _ENDPOINT.fullmatch(endpoint):
        raise OptionError(
            "--otlp-traces-endpoint: must be http://host:port, https://host:port or host:port, and may have a"
            " path for http/protobuf"
        )
    protocol = otlp_protocol()
    if protocol not in EXPORTERS:
        raise OptionError(
            f"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: got {protocol[:64]!a}, allowed {GRPC} and {HTTP}"
        )
    if not _is_installed(EXPORTERS[protocol]):
        raise OptionError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'enginewire[otel]'")


def otlp_protocol(environment: Mapping[str, str] = os.environ) -> str:
    """How spans are sent, as the environment says."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    return next((value for name in names if (value := environment.get(name))), GRPC)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None and find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:
        return False
