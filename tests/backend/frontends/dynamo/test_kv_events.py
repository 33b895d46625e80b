from __future__ import annotations

from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.frontends.dynamo.kv_events import KvMirror

HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3, unique=True)
STORED = HASHES.map(
    lambda hashes: pb.KvEvent(
        stored=pb.KvBlocksStored(block_hashes=hashes, token_ids=[1, 2] * len(hashes), block_size=2)
    )
)
REMOVED = HASHES.map(lambda hashes: pb.KvEvent(removed=pb.KvBlocksRemoved(block_hashes=hashes)))
CLEARED = st.just(pb.KvEvent(cleared=pb.KvCacheCleared()))


@given(st.lists(st.lists(st.one_of(STORED, REMOVED, CLEARED))))
def test_the_router_holds_what_the_engine_caches(responses: list[list[pb.KvEvent]]) -> None:
    mirror, cached, known = KvMirror(), set[int](), set[int]()
    for changes in responses:
        for change in changes:
            cached |= set(change.stored.block_hashes)
            cached -= cached if change.HasField("cleared") else set(change.removed.block_hashes)
        for event in mirror.events(changes):
            hashes = {block % 2**64 for block in event["block_hashes"]}
            assert all(-(2**63) <= block < 2**63 for block in event["block_hashes"])
            known = known | hashes if event["type"] == "stored" else known - hashes
    assert known == cached


def test_a_block_comes_with_its_tokens_and_its_parent() -> None:
    stored = pb.KvBlocksStored(
        parent_block_hash=2**64 - 1, block_hashes=[1, 2], token_ids=[1, 2, 3, 4], block_size=2, lora_name="x"
    )
    mirror = KvMirror()
    assert mirror.events([pb.KvEvent(sequence=8, stored=stored)]) == [
        {
            "type": "stored",
            "token_ids": [1, 2, 3, 4],
            "num_block_tokens": [2, 2],
            "block_hashes": [1, 2],
            "parent_hash": -1,
            "lora_name": "x",
        }
    ]
    assert mirror.sequence == 8


def test_a_block_that_is_elsewhere_is_no_hit() -> None:
    stored = pb.KvBlocksStored(block_hashes=[1], token_ids=[1], block_size=1, medium="cpu")
    assert KvMirror().events([pb.KvEvent(stored=stored)]) == []
