"""One multiplexed call, and the connection that makes it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from enginewire.backend.engines.connection.multiplexed import MultiplexedConnection
from tests.backend.engines.connection.multiplexed.fake_call import FakeCall


@pytest.fixture
async def call() -> FakeCall:
    return FakeCall()


@pytest.fixture
async def connection(call: FakeCall) -> AsyncIterator[MultiplexedConnection]:
    made = MultiplexedConnection(lambda: call, max_request_bytes=100_000)
    yield made
    await made.close()
