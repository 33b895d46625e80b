"""Who had the beginning of a prompt before."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.engines.choice.prefix_affinity import (
    BLOCK_TOKENS,
    COARSE_BLOCKS,
    FINE_BLOCKS,
    MAX_BLOCKS,
    MAX_HOLDERS,
    PrefixMemory,
    prefix_chain,
)

BLOCKS = st.lists(st.integers(0, 2), max_size=FINE_BLOCKS)


def ask(blocks: list[int], rest: int = 0, **fields: object) -> pb.PreprocessedRequest:
    """A prompt of whole blocks of one token each, and of a part of one."""
    ids = [block for block in blocks for _ in range(BLOCK_TOKENS)] + [9] * rest
    return pb.PreprocessedRequest(token_ids=ids, **fields)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many of the first items are equal."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@given(BLOCKS, BLOCKS, st.integers(0, BLOCK_TOKENS - 1))
def test_chains_agree_as_far_as_the_prompts_do_in_whole_blocks(
    one: list[int], other: list[int], rest: int
) -> None:
    chains = [list(prefix_chain(ask(blocks, rest))) for blocks in (one, other)]
    assert [len(chain) for chain in chains] == [len(one), len(other)]
    assert common(*chains) == common(one, other)
    assert not set(chains[0][common(one, other) :]) & set(chains[1])


def test_prompts_that_share_no_cache_have_nothing_in_common() -> None:
    plain = prefix_chain(ask([1, 2]))
    adapter = pb.RoutingHints(lora_name="a")
    for fields in ({"cache_salt": "s"}, {"model": "m"}, {"routing": adapter}):
        assert not set(prefix_chain(ask([1, 2], **fields))) & set(plain)
    assert prefix_chain(ask([1, 2], bypass_prefix_cache=True)) == ()


def test_a_very_long_prompt_is_known_by_its_beginning() -> None:
    longest = prefix_chain(ask([1] * MAX_BLOCKS))
    assert prefix_chain(ask([1] * (MAX_BLOCKS + 5))) == longest
    assert len(longest) == FINE_BLOCKS + (MAX_BLOCKS - FINE_BLOCKS) // COARSE_BLOCKS


@given(st.integers(FINE_BLOCKS, 40), st.integers(0, 39))
def test_behind_the_first_blocks_only_some_ends_are_compared(length: int, differs_at: int) -> None:
    one, other = [1] * length, [1] * length
    other[min(differs_at, length - 1)] = 2
    alike = common(one, other)
    expected = min(alike, FINE_BLOCKS) + max(0, alike - FINE_BLOCKS) // COARSE_BLOCKS
    assert common(prefix_chain(ask(one)), prefix_chain(ask(other))) == expected


@given(
    st.lists(st.tuples(BLOCKS, st.sampled_from("abc")), max_size=20), BLOCKS, st.sets(st.sampled_from("abc"))
)
def test_all_who_served_the_longest_beginning_are_found(
    served: list[tuple[list[int], str]], asked: list[int], allowed: set[str]
) -> None:
    memory: PrefixMemory[str] = PrefixMemory()
    for blocks, who in served:
        memory.remember(prefix_chain(ask(blocks)), who)
    for end in range(len(asked), 0, -1):
        expected = {who for blocks, who in served if blocks[:end] == asked[:end]} & allowed
        if expected:
            break
    else:
        expected = set()
    found = memory.find(prefix_chain(ask(asked)), lambda who: who in allowed)
    assert sorted(found) == sorted(expected)
    for who in allowed:
        memory.forget(who)
    assert not memory.find(prefix_chain(ask(asked)), lambda who: who in allowed)
    assert len(memory) == len(
        {tuple(b[:e]) for b, w in served if w not in allowed for e in range(1, len(b) + 1)}
    )


def test_of_many_who_served_it_the_last_ones_are_remembered() -> None:
    memory: PrefixMemory[int] = PrefixMemory()
    for who in range(MAX_HOLDERS + 3):
        memory.remember([1], who)
    assert sorted(memory.find([1], lambda _: True)) == [*range(3, MAX_HOLDERS + 3)]


def test_the_memory_is_bounded_and_forgets_what_was_asked_for_longest_ago() -> None:
    memory: PrefixMemory[str] = PrefixMemory(max_entries=4)
    memory.remember([1, 2], "a")
    memory.remember([3, 4], "b")
    memory.remember([1, 2], "a")
    memory.remember([5], "c")
    assert len(memory) == 4
    found = [[*memory.find(chain, lambda _: True)] for chain in ([1], [2], [3], [3, 4], [4], [5])]
    assert found == [["a"], ["a"], ["b"], ["b"], [], ["c"]]
