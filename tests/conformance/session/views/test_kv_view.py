from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.session.views.kv_view import Picture


def stored(*names: int, parent: int | None = None) -> pb.KvEvent:
    return pb.KvEvent(stored=pb.KvBlocksStored(block_hashes=names, parent_block_hash=parent))


def removed(*names: int) -> pb.KvEvent:
    return pb.KvEvent(removed=pb.KvBlocksRemoved(block_hashes=names))


def test_stored_blocks_are_each_the_child_of_the_one_before() -> None:
    picture = Picture()
    for event in (stored(1, 2), stored(3, 4, parent=2)):
        picture.apply(event)
    assert picture.blocks == {1: None, 2: 1, 3: 2, 4: 3}


def test_removed_blocks_are_gone_and_unknown_ones_odd() -> None:
    picture = Picture()
    for event in (stored(1, 2), removed(2, 7)):
        picture.apply(event)
    assert picture.blocks == {1: None}
    assert len(picture.oddities) == 1


def test_a_cleared_cache_holds_nothing() -> None:
    picture = Picture()
    for event in (stored(1), pb.KvEvent(cleared=pb.KvCacheCleared())):
        picture.apply(event)
    assert picture.blocks == {}
