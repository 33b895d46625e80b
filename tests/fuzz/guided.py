"""Inputs that reach new code, found by coverage.

    python -m tests.fuzz.guided TARGET [-runs=100000] [-seed=1]

TARGET is `frame` (of an engine, as the backend reads it), `request` (as the engine server checks it),
`body` (of the HTTP face) or `line` (of `enginewire backend jsonl`). Whatever is no failure of ours with a
name is a finding: atheris prints it and writes the input to a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["enginewire.backend", "enginewire.server"]):
    from google.protobuf.message import DecodeError

    from enginewire import v1 as pb
    from enginewire.backend.engines.connection.multiplexed import MultiplexedConnection
    from enginewire.backend.engines.failure import RequestFailed
    from enginewire.backend.frontends.http_api.body import Body, InvalidBody
    from enginewire.backend.frontends.json_items import InvalidJson, request_from_json
    from tests.backend.engines.connection.multiplexed.fake_call import FakeCall
    from tests.backend.frontends.http_api.test_bodies import ENDPOINTS
    from tests.contract.populated import populated
    from tests.fuzz.routes import ROUTES
    from tests.fuzz.rpcs import GOOD
    from tests.server.validation.requests_to_check import config, failure_of

LOOP = asyncio.new_event_loop()


def request(data: bytes) -> None:
    """Yes, or an error that names a field."""
    with contextlib.suppress(DecodeError):
        failure = failure_of(pb.GenerateRequest.FromString(data), config())
        assert failure is None or str(failure).isprintable()


def frame(data: bytes) -> None:
    """Two requests get what is theirs, or the connection ends; nobody waits."""
    LOOP.run_until_complete(_read_frame(data))


async def _read_frame(data: bytes) -> None:
    call = FakeCall()
    connection = MultiplexedConnection(lambda: call, 1 << 20)
    streams = [connection.submit(pb.GenerateRequest(request_id=name), None, {}) for name in "ab"]
    call.frames.put_nowait(data)
    call.frames.put_nowait(None)
    for stream in streams:
        with contextlib.suppress(RequestFailed):
            while await stream.read():
                pass
    await connection.close()


def body(data: bytes) -> None:
    """Read, or refused with a field."""
    with contextlib.suppress(InvalidBody):
        parsed = Body.parse(data)
        for endpoint in ENDPOINTS:
            with contextlib.suppress(InvalidBody):
                endpoint.read(parsed)


def line(data: bytes) -> None:
    """A request, or refused."""
    with contextlib.suppress(InvalidJson):
        request_from_json(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frame": frame,
    "request": request,
    "body": body,
    "line": line,
}


def seeds(name: str) -> list[bytes]:
    """Good inputs to begin with: without them nothing gets past the first check."""
    if name == "frame":
        rows = pb.GenerateMultiplexedResponse(handles=[1, 2], first_output_positions=[0, 0], token_ids=[5, 6])
        output = pb.LLMEngineOutput(
            token_ids=[7], first_output_position=1, finish_reason=pb.FINISH_REASON_LENGTH
        )
        event = pb.GenerateMultiplexedResponse(events=[pb.HandleEvent(handle=1, output=output)])
        return [
            rows.SerializeToString(),
            event.SerializeToString(),
            (populated(rows.DESCRIPTOR)).SerializeToString(),
        ]
    if name == "request":
        full = populated(pb.GenerateRequest.DESCRIPTOR)
        return [GOOD["EngineService.Generate"].SerializeToString(), full.SerializeToString()]
    return [json.dumps(route.body).encode() for route in ROUTES if route.body]


def main() -> None:
    """Ends the process."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(str(__doc__))
    name = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(seeds(name)):
            (Path(folder) / str(number)).write_bytes(data)
        atheris.Setup([*sys.argv, folder], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
