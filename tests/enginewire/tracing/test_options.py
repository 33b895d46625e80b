"""Where traces are sent, as operators say it, and what is said back."""

from __future__ import annotations

import sys

import pytest

from enginewire.backend.config import ServeOptions
from enginewire.options import OptionError
from enginewire.server.config.options import ServerOptions
from enginewire.tracing.options import GRPC, HTTP, otlp_protocol

PROGRAMS = pytest.mark.parametrize("program", [ServerOptions, ServeOptions])
GOOD = "http://127.0.0.1:4317"


@PROGRAMS
@pytest.mark.parametrize(
    "endpoint",
    [GOOD, "https://traces.example.org/v1/traces", "grpc://jaeger:4317", "jaeger:4317", "http://[::1]:4317"],
)
def test_an_endpoint_is_taken(program, endpoint: str) -> None:
    assert program(otlp_traces_endpoint=endpoint).otlp_traces_endpoint == endpoint


@PROGRAMS
@pytest.mark.parametrize("endpoint", ["ftp://host:1", "http://", "two words", "http://user:secret@host:4317"])
def test_what_is_no_endpoint_is_refused(program, endpoint: str) -> None:
    with pytest.raises(OptionError, match=r"--otlp-traces-endpoint: must be") as caught:
        program(otlp_traces_endpoint=endpoint)
    assert "secret" not in str(caught.value)


@PROGRAMS
def test_a_missing_package_is_named(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    monkeypatch.setattr("enginewire.tracing.options.find_spec", lambda name: None)
    assert program().otlp_traces_endpoint == ""
    with pytest.raises(OptionError, match=r"pip install 'enginewire\[otel\]'"):
        program(otlp_traces_endpoint=GOOD)


@PROGRAMS
def test_an_unknown_protocol_is_refused(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "carrier pigeon")
    with pytest.raises(OptionError, match=r"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: got 'carrier pigeon'"):
        program(otlp_traces_endpoint=GOOD)


def test_the_protocol_of_traces_wins() -> None:
    assert otlp_protocol({}) == GRPC
    assert otlp_protocol({"OTEL_EXPORTER_OTLP_PROTOCOL": HTTP}) == HTTP
    both = {"OTEL_EXPORTER_OTLP_PROTOCOL": HTTP, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": GRPC}
    assert otlp_protocol(both) == GRPC
