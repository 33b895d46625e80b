from __future__ import annotations

import asyncio

import grpc
import pytest

from enginewire.conformance.wire.foreign import otlp
from enginewire.conformance.wire.foreign.collector import Collector


def _request(number: int) -> bytes:
    request = otlp.Request()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="one", trace_id=bytes([number] * 16))
    span.attributes.add(key="tokens").value.array_value.values.add(int_value=0)
    return bytes(request.SerializeToString())


def test_what_a_span_says_is_every_text_and_number_in_it_zeros_included() -> None:
    span = otlp.Request.FromString(_request(1)).resource_spans[0].scope_spans[0].spans[0]
    assert otlp.leaves(span)[1:] == ["one", "tokens", "0"]


async def test_a_collector_keeps_spans_and_answers_when_it_likes() -> None:
    collector = await Collector.open("127.0.0.1:0")
    async with grpc.aio.insecure_channel(collector.address) as channel:
        export = channel.unary_unary(otlp.EXPORT)
        assert await export(_request(1)) == b""
        collector.hold()
        waiting = asyncio.ensure_future(export(_request(2)))
        assert await collector.until(lambda: collector.num_held == 1, 20)
        assert not waiting.done()
        assert [span.trace_id for span in collector.of(["02" * 16])] == ["02" * 16]
        collector.release()
        assert await waiting == b""
        assert not await collector.until(lambda: False, 0)
    await collector.close()


async def test_an_address_that_is_taken_is_a_mistake_of_the_user() -> None:
    collector = await Collector.open("127.0.0.1:0")
    with pytest.raises(ValueError, match=r"--otlp-listen 127.0.0.1:.*: nobody can listen there"):
        await Collector.open(collector.address)
    await collector.close()
