"""How far a draft follows a grammar, asked without going on."""

from __future__ import annotations

from random import Random

import numpy
import pytest

from enginewire.torch_engine.guided.library import Library, LibraryMatcher, Vocabulary
from enginewire.torch_engine.guided.matcher import GuidedMatcher
from enginewire.torch_engine.guided.open_library import open_library
from tests.torch_engine.guided.engines import BACKENDS

TOKENS = (*(bytes([byte]) for byte in range(32, 127)), b"ab", b"ba", b"abab", b"", b"")
END = len(TOKENS) - 1
GUIDES = [("regex", "(ab|ba){2,5}c?"), ("json_schema", '{"type": "array", "items": {"enum": ["a", 1]}}')]


@pytest.fixture(scope="module", params=BACKENDS)
def library(request) -> Library:
    return open_library(request.param, Vocabulary(TOKENS, (END,)))


def allowed(matcher: LibraryMatcher) -> list[int]:
    mask = numpy.zeros((1, -(-len(TOKENS) // 32)), dtype=numpy.int32)
    assert matcher.fill(mask, 0)
    return [i for i in range(len(TOKENS)) if mask[0, i // 32] >> (i % 32) & 1]


@pytest.mark.parametrize(("kind", "text"), GUIDES)
@pytest.mark.parametrize("ending_ids", [[END], []])
def test_it_is_as_many_as_would_be_accepted_and_nothing_has_moved(library, kind, text, ending_ids):
    random, lengths = Random(4), set()
    grammar = library.load(library.compile(kind, text))
    for _ in range(12):
        matcher, seen = grammar.start(ending_ids), []
        while not matcher.is_over and len(seen) < 12:
            draft = likely_draft(random, grammar.start(ending_ids), seen)
            before = allowed(matcher)
            count = matcher.count_allowed(draft)
            assert allowed(matcher) == before
            assert not matcher.is_over
            wanted = accepted(grammar.start(ending_ids), seen, draft)
            # Where a match ends without a token that says so, llguidance looks beyond its end.
            assert count == wanted if ending_ids else count >= wanted
            lengths.add(min(count, 4))
            choices = [token_id for token_id in before if token_id != END]
            if not choices:
                break
            seen.append(random.choice(choices))
            assert matcher.accept(seen[-1])
    assert lengths >= {0, 1, 2}


def likely_draft(random: Random, matcher: LibraryMatcher, seen: list[int]) -> list[int]:
    """A draft that begins by the grammar and then leaves it."""
    for token_id in seen:
        matcher.accept(token_id)
    draft: list[int] = []
    for _ in range(random.randint(0, 5)):
        choices = [] if matcher.is_over else [each for each in allowed(matcher) if each != END]
        if not choices:
            break
        draft.append(random.choice(choices))
        matcher.accept(draft[-1])
    return [*draft, random.randrange(95)]


def accepted(matcher: LibraryMatcher, seen: list[int], draft: list[int]) -> int:
    for token_id in seen:
        assert matcher.accept(token_id)
    count = 0
    while count < len(draft) and not matcher.is_over and matcher.accept(draft[count]):
        count += 1
    return count


def test_a_grammar_that_needs_its_time_itself_is_not_asked(library):
    grammar = library.load(library.compile("regex", "a*"))
    draft = [TOKENS.index(b"a")] * 3
    quick = GuidedMatcher(grammar.start([END]))
    assert quick.count_allowed(draft) == 3
    slow = GuidedMatcher(grammar.start([END]), seconds=0.1)
    assert slow.count_allowed(draft) == 0
