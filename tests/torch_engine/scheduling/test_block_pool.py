"""The block pool hands blocks out, shares them, keeps some and gives the oldest of those up."""

from __future__ import annotations

import pytest

from enginewire.torch_engine.scheduling.block_pool import BlockPool


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_used, pool.num_cached


def test_a_block_cannot_be_freed_twice():
    pool = BlockPool(4, 4)
    blocks = pool.allocate(2)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(blocks)


def test_a_shared_block_is_free_when_its_last_holder_lets_it_go():
    pool = BlockPool(4, 4)
    blocks = pool.allocate(2)
    pool.hold(blocks)
    pool.free(blocks)
    assert counts(pool) == (2, 2, 0)
    pool.free(blocks)
    assert counts(pool) == (4, 0, 0)


def test_kept_blocks_are_given_up_oldest_first_and_only_for_want_of_blank_ones():
    pool, given_up = BlockPool(4, 4), []
    pool.on_evict = given_up.append
    first, second = pool.allocate(1), pool.allocate(2)
    for block in first + second:
        pool.keep(block)
    pool.free(second)
    pool.free(first)
    assert counts(pool) == (4, 0, 3)
    assert pool.allocate(1) == [3]
    assert given_up == []
    pool.allocate(2)
    assert given_up == [second[1], second[0]], "the end of a table goes before its beginning"
    assert counts(pool) == (1, 3, 1)


def test_a_kept_block_that_is_held_again_is_not_given_up():
    pool, given_up = BlockPool(2, 4), []
    pool.on_evict = given_up.append
    block = pool.allocate(1)
    pool.keep(block[0])
    pool.free(block)
    pool.hold(block)
    assert pool.allocate(1) == [1]
    assert (given_up, pool.num_free) == ([], 0)
    with pytest.raises(AssertionError, match="num_free"):
        pool.allocate(1)


def test_a_blank_block_cannot_be_shared():
    with pytest.raises(AssertionError, match="nothing to share"):
        BlockPool(2, 4).hold([0])


def test_a_dropped_block_is_blank_again():
    pool = BlockPool(2, 4)
    pool.on_evict = lambda block: pytest.fail("nobody has to be told")
    block = pool.allocate(1)
    pool.keep(block[0])
    pool.free(block)
    pool.drop(block)
    assert counts(pool) == (2, 0, 0)
    pool.allocate(2)
