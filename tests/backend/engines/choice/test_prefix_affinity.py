"""Who had the beginning of a prompt before."""

from __future__ import annotations

from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.engines.choice.prefix_affinity import (
    BLOCK_TOKENS,
    MAX_BLOCKS,
    PrefixMemory,
    prefix_chain,
)

BLOCKS = st.lists(st.integers(0, 2), max_size=6)


def ask(blocks: list[int], rest: int = 0, **fields: object) -> pb.PreprocessedRequest:
    """A prompt of whole blocks of one token each, and of a part of one."""
    ids = [block for block in blocks for _ in range(BLOCK_TOKENS)] + [9] * rest
    return pb.PreprocessedRequest(token_ids=ids, **fields)


def common(one: list[int], other: list[int]) -> int:
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
    assert len(prefix_chain(ask([1] * (MAX_BLOCKS + 5)))) == MAX_BLOCKS


@given(
    st.lists(st.tuples(BLOCKS, st.sampled_from("abc")), max_size=20), BLOCKS, st.sets(st.sampled_from("abc"))
)
def test_the_last_to_serve_the_longest_beginning_is_found(
    served: list[tuple[list[int], str]], asked: list[int], allowed: set[str]
) -> None:
    memory: PrefixMemory[str] = PrefixMemory()
    last: dict[tuple[int, ...], str] = {}
    for blocks, who in served:
        memory.remember(prefix_chain(ask(blocks)), who)
        last |= {tuple(blocks[:end]): who for end in range(1, len(blocks) + 1)}
    own = [last.get(tuple(asked[:end])) for end in range(len(asked), 0, -1)]
    expected = next((who for who in own if who in allowed), None)
    assert memory.find(prefix_chain(ask(asked)), lambda who: who in allowed) == expected


def test_the_memory_is_bounded_and_forgets_what_was_asked_for_longest_ago() -> None:
    memory: PrefixMemory[str] = PrefixMemory(max_entries=4)
    memory.remember([1, 2], "a")
    memory.remember([3, 4], "b")
    memory.remember([1, 2], "a")
    memory.remember([5], "c")
    assert len(memory) == 4
    assert memory.find([3], lambda _: True) == "b"
    assert memory.find([3, 4], lambda _: True) == "b"
    assert [memory.find([number], lambda _: True) for number in (1, 2, 3, 4, 5)] == ["a", "a", "b", None, "c"]
