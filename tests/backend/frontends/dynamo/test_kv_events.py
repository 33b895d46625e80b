from __future__ import annotations

from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.frontends.dynamo.kv_events import KvMirror

MEDIA = st.sampled_from(["gpu", "cpu"])
HASHES = st.lists(st.sampled_from([0, 1, 2**63, 2**64 - 1]), min_size=1, max_size=3, unique=True)
STORED = st.tuples(HASHES, MEDIA).map(
    lambda where: pb.KvEvent(
        stored=pb.KvBlocksStored(
            block_hashes=where[0], token_ids=[1, 2] * len(where[0]), block_size=2, medium=where[1]
        )
    )
)
REMOVED = st.tuples(HASHES, MEDIA).map(
    lambda where: pb.KvEvent(removed=pb.KvBlocksRemoved(block_hashes=where[0], medium=where[1]))
)
CLEARED = st.just(pb.KvEvent(cleared=pb.KvCacheCleared()))


@given(st.lists(st.lists(st.one_of(STORED, REMOVED, CLEARED))))
def test_the_router_holds_what_the_engine_caches_anywhere(responses: list[list[pb.KvEvent]]) -> None:
    mirror, cached, known = KvMirror(), set[tuple[int, str]](), set[int]()
    for changes in responses:
        for change in changes:
            cached |= {(block, change.stored.medium) for block in change.stored.block_hashes}
            cached -= {(block, change.removed.medium) for block in change.removed.block_hashes}
            cached = set() if change.HasField("cleared") else cached
        for event in mirror.events(changes):
            hashes = {block % 2**64 for block in event["block_hashes"]}
            assert all(-(2**63) <= block < 2**63 for block in event["block_hashes"])
            known = known | hashes if event["type"] == "stored" else known - hashes
    assert known == {block for block, _ in cached}


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
