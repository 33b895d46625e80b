"""Load reports as a load balancer reads them. The bytes are those that xds-protos 1.85.0 writes."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace

import grpc
import h2.connection
import h2.events
import pytest

from enginewire import v1 as pb
from enginewire.server.services.orca import LEAST_SECONDS, OrcaServicer, report_of
from enginewire.server.services.orca_messages import OrcaLoadReport, OrcaLoadReportRequest
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Serving, ask, seconds

TRAILER = b"endpoint-load-metrics-bin"
METHOD = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
REPORT = bytes.fromhex(
    "421e0a136b765f63616368655f75736167655f7065726311000000000000c03f"
    "421f0a146e756d5f72657175657374735f72756e6e696e67110000000000000840"
    "421f0a146e756d5f72657175657374735f77616974696e67110000000000000040"
    "49000000000000e83f"
)
EVERY_TWO_AND_A_HALF_SECONDS = bytes.fromhex("0a0808021080cab5ee01")


def stream(serving: Serving, interval: float) -> grpc.aio.UnaryStreamCall:
    call = serving.channel.unary_stream(
        METHOD,
        request_serializer=OrcaLoadReportRequest.SerializeToString,
        response_deserializer=OrcaLoadReport.FromString,
    )
    request = OrcaLoadReportRequest.FromString(bytes.fromhex("0a00"))
    request.report_interval.MergeFromString(seconds(interval).SerializeToString())
    return call(request, timeout=PATIENCE_SECONDS)


def metrics(report) -> dict[str, float]:
    return {metric.key: metric.value for metric in report.named_metrics}


async def trailers_of(serving: Serving, request: pb.GenerateRequest) -> dict[bytes, bytes]:
    """As they come over the wire: gRPC's own clients keep this one for their load balancers."""
    reader, writer = await asyncio.open_unix_connection(serving.server.target.removeprefix("unix:"))
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    head = {":method": "POST", ":scheme": "http", ":path": "/enginewire.v1.EngineService/Generate"}
    head |= {":authority": "localhost", "content-type": "application/grpc", "te": "trailers"}
    connection.send_headers(1, list(head.items()))
    body = request.SerializeToString()
    connection.send_data(1, b"\0" + len(body).to_bytes(4, "big") + body, end_stream=True)
    try:
        while True:
            writer.write(connection.data_to_send())
            for event in connection.receive_data(await reader.read(65536)):
                if isinstance(event, h2.events.TrailersReceived):
                    return dict(event.headers)
    finally:
        writer.close()
        await writer.wait_closed()


def test_a_request_says_how_often():
    interval = OrcaLoadReportRequest.FromString(EVERY_TWO_AND_A_HALF_SECONDS).report_interval
    assert (interval.seconds, interval.nanos) == (2, 500_000_000)


def test_a_report_has_how_full_the_fuller_one_is_and_the_names_that_vllm_uses():
    load = pb.Load(running=3, waiting=2, kv_blocks_used=1, kv_blocks_total=8)
    report = report_of(load, 4)
    assert report.application_utilization == 0.75
    assert report.SerializeToString() == REPORT
    assert report_of(load, 12).application_utilization == 0.25
    assert report_of(pb.Load(), 0).application_utilization == 0


def test_slots_are_those_of_all_ranks():
    config = pb.EngineConfig(max_num_seqs=4, data_parallel_size=2)
    lifecycle = SimpleNamespace(config=config, load=lambda: pb.Load(running=4))
    assert OrcaServicer(lifecycle).report().application_utilization == 0.5


async def test_an_answer_ends_with_a_report(engine_server):
    serving = await engine_server(orca_load_reports=True)
    trailers = await trailers_of(serving, ask(max_tokens=3))
    assert trailers[b"grpc-status"] == b"0"
    data = trailers[TRAILER]
    report = OrcaLoadReport.FromString(base64.b64decode(data + b"=" * (-len(data) % 4)))
    assert "num_requests_running" in metrics(report)


async def test_reports_come_without_a_request_too_and_follow_the_load(engine_server):
    # Without a pause between steps all of it would have come between two reports.
    serving = await engine_server(orca_load_reports=True, mocker_itl_ms=10.0)
    reports = stream(serving, LEAST_SECONDS / 100)
    assert metrics(await reports.read())["num_requests_running"] == 0
    running = asyncio.create_task(serving.generate(ask(max_tokens=100_000)))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not metrics(report := await reports.read())["num_requests_running"]:
            pass
    assert report.application_utilization > 0
    reports.cancel()
    await serving.engine.Abort(pb.AbortRequest(all=True))
    await running


async def test_nothing_is_reported_unless_it_was_asked_for(engine_server):
    serving = await engine_server()
    assert TRAILER not in await trailers_of(serving, ask(max_tokens=3))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream(serving, 1).read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
