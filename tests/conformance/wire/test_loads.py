from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.conformance.wire.loads import OF_REQUESTS, describe_load, is_idle


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_whatever_is_left_of_a_request_is_seen_and_told(name: str) -> None:
    load = pb.Load(step=9, kv_blocks_cached=4, state=pb.ENGINE_STATE_READY)
    assert is_idle(load)
    setattr(load, name, 3)
    assert not is_idle(load)
    assert f"{name} 3" in describe_load(load)
