"""What subscribers learn of vLLM's prefix cache, from events like vLLM's."""

from __future__ import annotations

from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.vllm_engine.kv_events.cached_blocks import PRIVATE, CachedBlocks

SIZE = 2


@dataclass
class BlockStored:
    """As vLLM's, with the fields that are read."""

    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None = None
    lora_name: str | None = None
    extra_keys: list[tuple[object, ...] | None] | None = None
    block_size: int = SIZE
    group_idx: int | None = 0
    token_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.token_ids = self.token_ids or list(range(self.block_size * len(self.block_hashes)))


@dataclass
class BlockRemoved:
    """The same."""

    block_hashes: list[bytes | int]


class AllBlocksCleared:
    """The same."""


async def held(*events: object) -> list[pb.KvBlocksStored]:
    """The cache as a subscriber gets it that comes after these events."""
    blocks = CachedBlocks(SIZE, "cpu")
    blocks.take(events)
    blocks.log.close()
    stored = [event.stored async for message in blocks.log.subscribe() for event in message.events][1:]
    assert sum(len(each.block_hashes) for each in stored) == len(blocks)
    return stored


async def hashes(*events: object) -> set[int]:
    return {block_hash for each in await held(*events) for block_hash in each.block_hashes}


async def test_blocks_have_their_tokens_their_parents_and_the_name_that_callers_gave_their_adapter() -> None:
    first = BlockStored([11, 12], lora_name="3:one", token_ids=[1, 2, 3, 4])
    (stored,) = await held(
        first, BlockStored([13], parent_block_hash=12, lora_name="3:one", token_ids=[5, 6])
    )
    assert list(stored.block_hashes) == [11, 12, 13]
    assert list(stored.token_ids) == [1, 2, 3, 4, 5, 6]
    assert not stored.HasField("parent_block_hash")
    assert (stored.lora_name, stored.block_size, stored.medium) == ("one", SIZE, "cpu")


async def test_a_hash_of_bytes_is_64_bits_of_it() -> None:
    block_hash = bytes(range(32))
    assert await hashes(BlockStored([block_hash])) == {int.from_bytes(block_hash[:8], "little")}


async def test_blocks_that_are_found_again_are_told_once_and_removed_once() -> None:
    again = BlockStored([11, 12])
    assert await hashes(again, again, BlockStored([11, 12, 13])) == {11, 12, 13}
    assert await hashes(again, again, BlockRemoved([12]), BlockRemoved([12])) == {11}


async def test_what_nobody_can_find_is_not_told() -> None:
    private = BlockStored([21, 22], extra_keys=[(f"{PRIVATE}a1",), None])
    assert await hashes(private, BlockStored([23], parent_block_hash=22)) == set()
    assert await hashes(BlockStored([21], extra_keys=[("a caller's salt",)])) == {21}
    assert await hashes(BlockStored([31], block_size=2 * SIZE), BlockStored([32], group_idx=1)) == set()


async def test_blocks_with_pictures_are_not_told_nor_what_follows_them() -> None:
    """Their tokens are the same for every picture."""
    seen = BlockStored([41, 42, 43], extra_keys=[None, (("a picture", 3),), None])
    assert await hashes(seen) == set()
    assert await hashes(BlockStored([41]), BlockStored([44], parent_block_hash=41)) == {41, 44}


async def test_a_cleared_cache_is_empty_and_fills_again() -> None:
    assert await hashes(BlockStored([11]), AllBlocksCleared()) == set()
    assert await hashes(BlockStored([11]), AllBlocksCleared(), BlockStored([11])) == {11}


def test_clearing_counts_what_was_there() -> None:
    blocks = CachedBlocks(SIZE, "cpu")
    blocks.take([BlockStored([11, 12])])
    assert (blocks.clear(), len(blocks), blocks.clear()) == (2, 0, 0)
