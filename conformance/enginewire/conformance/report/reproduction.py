"""How to see one result again: with the kit, and without it by `grpcurl`.

Only what the user typed on the command line or what the contract defines goes into a line, quoted for a
shell. Metadata may be secret and is left out.
"""

from __future__ import annotations

import shlex
from typing import Final

from google.protobuf.json_format import MessageToJson

from enginewire.conformance.running.outcome import Outcome, Report
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.methods import method_of

LONGEST_DATA: Final = 4000
"""Characters of a request in a command line; a longer one is no line for a human."""

TLS_FLAGS: Final = {
    "--tls-ca": "-cacert",
    "--tls-cert": "-cert",
    "--tls-key": "-key",
    "--tls-name": "-servername",
}
"""Ours, and what grpcurl calls them."""

STARTED: Final = ("--launch", "client ")
"""How invocations begin that start a program."""

PROTO_PATH: Final = '"$(enginewire-conformance --proto-path)"'
"""For a shell: a report is read on other machines than the one that wrote it."""

HEALTH: Final = "grpc.health.v1"


def kit_line(report: Report, outcome: Outcome) -> str:
    """The kit again, for this check only, or for the one whose calls showed it; none of one made them all."""
    key = outcome.traffic or outcome.key
    return f"enginewire-conformance {report.invocation} --run {shlex.quote(key)} --trace"


def grpcurl_line(report: Report, exchange: Exchange) -> str:
    """One call by grpcurl, which asks the kit where the contract lies; empty where it cannot be sent so."""
    method = method_of(exchange.method)
    if not method or exchange.request is None or isinstance(exchange.request, bytes):
        return ""
    data = MessageToJson(exchange.request, indent=None, preserving_proto_field_name=True)
    if len(data) > LONGEST_DATA:
        return ""
    service, _, name = method.path.removeprefix("/").partition("/")
    flags = [*_address(report), *_schema(service, exchange), "-d", shlex.quote(data)]
    return " ".join(["grpcurl", *flags, _target(report), f"{service}/{name}"])


def grpcurl_lines(report: Report, outcome: Outcome) -> list[str]:
    """The last call of a check that can be repeated, as a list of none or one."""
    lines = (grpcurl_line(report, exchange) for exchange in reversed(outcome.exchanges))
    return [line for line in lines if line][:1]


def _schema(service: str, exchange: Exchange) -> list[str]:
    if service.startswith(HEALTH):
        return []  # grpcurl asks the server's reflection for it
    file = exchange.request.DESCRIPTOR.file.name  # type: ignore[union-attr]  # the caller has looked
    return ["-import-path", PROTO_PATH, "-proto", file]


def _address(report: Report) -> list[str]:
    words = shlex.split(report.invocation)
    flags = [word for word in words if word.startswith("--tls")]
    named = [(TLS_FLAGS[word], words[words.index(word) + 1]) for word in flags if word in TLS_FLAGS]
    secured = [shlex.quote(part) for pair in named for part in pair] if flags else ["-plaintext"]
    return [*secured, "-unix"] if report.target.startswith("unix:") else secured


def _target(report: Report) -> str:
    if report.invocation.startswith(STARTED):
        return "ADDRESS"  # what the kit started is gone; only the user knows where the next one is
    return shlex.quote(report.target.removeprefix("unix:"))
