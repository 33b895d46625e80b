"""Fragments of characters: remembered moves change nothing, and there is a bound on them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from enginewire.backend.decoding.byte_level import ByteLevelTable
from tests.backend.decoding import toy_tokenizers as toy

TOKENIZER = toy.byte_level()
PIECES = [TOKENIZER.id_to_token(token_id) for token_id in range(TOKENIZER.get_vocab_size())]
FRAGMENTS = sorted(ByteLevelTable(PIECES, ()).fragments)

some_ids = st.lists(st.sampled_from(FRAGMENTS) | st.integers(0, len(PIECES) + 3), max_size=30)


@pytest.mark.hypothesis
@pytest.mark.parametrize("max_moves", [0, 3, 1000])
def test_streams_that_share_a_table_give_what_decode_gives(max_moves: int) -> None:
    table = ByteLevelTable(PIECES, (), max_moves)

    @given(st.lists(some_ids, min_size=1, max_size=3))
    def check(texts: list[list[int]]) -> None:
        for ids in texts:
            stream = table.detokenizer()
            shown = "".join([*map(stream.step, ids), stream.flush()])
            assert shown == TOKENIZER.decode(ids, skip_special_tokens=False)

    check()


def num_moves(table: ByteLevelTable) -> int:
    seen, todo = set(), [table.nothing_held]
    while todo:
        held = todo.pop()
        if held not in seen:
            seen.add(held)
            todo += [after for _, after in held.moves.values()]
    return sum(len(held.moves) for held in seen)


def test_no_more_is_remembered_than_there_may_be() -> None:
    table = ByteLevelTable(PIECES, (), 20)
    for first in FRAGMENTS:
        for second in FRAGMENTS:
            table.detokenizer().feed([first, second])
    assert num_moves(table) == 20


def test_what_was_worked_out_once_is_found_again() -> None:
    table = ByteLevelTable(PIECES, ())
    ids = TOKENIZER.encode("👩‍👩‍👧‍👦").ids
    table.detokenizer().feed(ids)
    before = num_moves(table)
    assert before > 0
    table.detokenizer().feed(ids)
    assert num_moves(table) == before
