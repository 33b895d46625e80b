"""Reports made up for a test: one outcome of every status, and a target that means harm with every string."""

from __future__ import annotations

import grpc

from enginewire import v1 as pb
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running.outcome import Outcome, Report, Status
from enginewire.conformance.wire.exchange import Arrived, Exchange

HOSTILE = (
    "\x1b[2J\x00<script>alert(1)</script>\"'><img src=x onerror=alert(1)>`]]>|# SKIP\nok 1\u202eevil\ud800--"
)

IDS = (
    *("STR-01", "STR-02", "STR-03", "STR-05", "STR-06", "STR-07", "USE-01", "USE-02", "USE-03", "LIM-01"),
    "LIM-02",
)


def exchange(text: str = "") -> Exchange:
    request = pb.GenerateRequest(request_id=text.encode(errors="ignore").decode() or "r")
    response = pb.GenerateResponse(request_id=request.request_id)
    return Exchange(
        method="EngineService.Generate",
        request=request,
        started_at=10.0,
        ended_at=10.5,
        arrived=[Arrived(10.0 + number / 100, response, 9) for number in range(50)],
        metadata=(("authorization", "Bearer secret"),),
        code=grpc.StatusCode.INTERNAL,
        text=text,
    )


def outcome(status: Status, identifier: str = "STR-01", text: str = "", key: str = "") -> Outcome:
    return Outcome(
        key=key or identifier,
        requirement=requirements()[identifier],
        status=status,
        message=text or f"was {status.value}",
        expected=text,
        seen=text,
        known=text,
        exchanges=[exchange(text)],
    )


def report(*outcomes: Outcome, text: str = "", strict: bool = False) -> Report:
    return Report(
        target="unix:/run/engine.sock",
        invocation="--target unix:/run/engine.sock",
        engine=text or "an engine",
        bounds="bounds",
        outcomes=outcomes,
        seconds=1.5,
        strict=strict,
    )


def hostile_report() -> Report:
    every = zip(Status, IDS, strict=True)
    return report(*(outcome(status, identifier, HOSTILE) for status, identifier in every), text=HOSTILE)
