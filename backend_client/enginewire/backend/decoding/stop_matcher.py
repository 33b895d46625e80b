"""Finds stop strings in a text that arrives in pieces.

Holds the automaton compiled from a set of stop strings and the matcher, one per choice, that walks
it. Knows nothing about tokens, tokenizers or requests: characters in, releasable characters out.

The rule: of all matches that end while the matcher is armed, the one that begins earliest wins, and
of those the longest. The winner is known as soon as no candidate that begins at or before it can
still complete; the end of the text decides the rest. So the outcome does not depend on where the
text was cut into pieces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

# Remembered moves per automaton, and the longest piece worth remembering: enough for the frequent
# tokens of a vocabulary, and a bound on what one caller's stop set can cost.
MAX_MOVES = 16_384
MAX_MOVE_CHARS = 48


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`stop` was found; `decided_at` counts the characters of the deciding piece that were needed."""

    stop: str
    decided_at: int


@dataclass(slots=True, eq=False)
class StopAutomaton:
    """Aho-Corasick over characters. Node 0 is the root; all lists are indexed by node.

    `open_length`: length of the longest suffix, the node itself included, that a further character
    can still extend towards a stop. `match_length`: length of the longest stop that is a suffix.
    `moves` remembers, per node, where a whole match-free piece leads.
    """

    children: list[dict[str, int]] = field(default_factory=lambda: [{}])
    fallback: list[int] = field(default_factory=lambda: [0])
    open_length: list[int] = field(default_factory=lambda: [0])
    match_length: list[int] = field(default_factory=lambda: [0])
    moves: list[dict[str, int]] = field(default_factory=lambda: [{}])
    first_characters: frozenset[str] = frozenset()
    stops: frozenset[str] = frozenset()
    num_moves: int = 0

    def insert(self, stop: str) -> None:
        """Add one stop; `link` must follow the last one."""
        node = 0
        for character in stop:
            node = self.children[node].get(character) or self._add_child(node, character)
        self.match_length[node] = len(stop)

    def _add_child(self, node: int, character: str) -> int:
        child = len(self.children)
        self.children[node][character] = child
        self.children.append({})
        self.fallback.append(0)
        self.open_length.append(0)
        self.match_length.append(0)
        self.moves.append({})
        return child

    def link(self) -> None:
        """Fill the tables that depend on all stops, breadth first: shorter suffixes come before."""
        self.first_characters = frozenset(self.children[0])
        queue = deque((child, 0, 1) for child in self.children[0].values())
        while queue:
            node, fallback, depth = queue.popleft()
            self.fallback[node] = fallback
            self.open_length[node] = depth if self.children[node] else self.open_length[fallback]
            self.match_length[node] = self.match_length[node] or self.match_length[fallback]
            for character, child in self.children[node].items():
                queue.append((child, self.next_node(fallback, character), depth + 1))

    def next_node(self, node: int, character: str) -> int:
        """The longest suffix of node + character that begins a stop."""
        while (child := self.children[node].get(character)) is None:
            if node == 0:
                return 0
            node = self.fallback[node]
        return child

    def remember(self, node: int, piece: str, target: int) -> None:
        """Keep a match-free move for the next time this piece arrives at this node."""
        if self.num_moves < MAX_MOVES and len(piece) <= MAX_MOVE_CHARS:
            self.moves[node][piece] = target
            self.num_moves += 1


@lru_cache(maxsize=16)
def compile_stops(stops: tuple[str, ...]) -> StopAutomaton:
    """The automaton of these stops, none of them empty. Shared between requests of equal stops."""
    assert all(stops), "stop conditions were validated"
    automaton = StopAutomaton(stops=frozenset(stops))
    for stop in stops:
        automaton.insert(stop)
    automaton.link()
    return automaton


class StopMatcher:
    """Watches one text for stop strings and says how much of it can be shown.

    A hidden match is cut out, so the longest suffix that could still become one is withheld. With
    `visible` the match is shown, so only what follows an undecided match is withheld.
    """

    __slots__ = ("_automaton", "_best", "_node", "_shown", "_tail", "_visible", "armed", "match")

    def __init__(self, stops: Sequence[str], *, visible: bool = False) -> None:
        self.armed = True
        self.match: StopMatch | None = None
        self._automaton = compile_stops(tuple(stops))
        self._visible = visible
        self._node = 0
        # The text since the earliest open candidate, and how much of it was shown already.
        self._tail = ""
        self._shown = 0
        # Begin and end, in `_tail`, of the best complete match. While set, no remembered move is taken:
        # it might be decided by the next piece, or be decided and nothing more may be shown.
        self._best: tuple[int, int] | None = None

    @property
    def automaton(self) -> StopAutomaton:
        """Shared with matchers of equal stops, and so a name for them."""
        return self._automaton

    @property
    def stops(self) -> frozenset[str]:
        """The stop strings."""
        return self._automaton.stops

    @property
    def withheld(self) -> str:
        """Text that was fed and is not shown yet."""
        return self._tail[self._shown :]

    @property
    def is_at_rest(self) -> bool:
        """No candidate is open: what a piece does does not depend on what came before it."""
        return self._node == 0 and self._best is None

    def stays_at_rest(self, piece: str) -> bool:
        """The piece is known to pass whole where it comes at rest, and to change nothing."""
        return self._automaton.moves[0].get(piece) == 0

    def feed(self, piece: str) -> str:
        """Take the next piece, return the text that can be shown. After `match` is set: nothing."""
        target = self._automaton.moves[self._node].get(piece)
        if target is None or self._best is not None:
            return self._scan(piece)
        self._node = target
        if not self._tail and not self._automaton.open_length[target]:
            return piece
        return self._release(self._tail + piece)

    def finish(self) -> str:
        """The text is complete: decide, and return what was withheld and can be shown."""
        if self.match is None and self._best is not None:
            return self._decide(self._tail, self._best, 0)
        text, self._tail, self._shown = self.withheld, "", 0
        return text

    def _scan(self, piece: str) -> str:
        """Walk the piece character by character."""
        automaton, node, best = self._automaton, self._node, self._best
        if self.match is not None or not piece:
            return ""
        if node == 0 and best is None and automaton.first_characters.isdisjoint(piece):
            automaton.remember(0, piece, 0)
            return piece
        text = self._tail + piece
        matched = False
        for end, character in enumerate(piece, len(self._tail) + 1):
            node = automaton.next_node(node, character)
            if length := automaton.match_length[node]:
                matched = True
                if self.armed and (best is None or end - length <= best[0]):
                    best = (end - length, end)
            if best is not None and end - automaton.open_length[node] > best[0]:
                return self._decide(text, best, end - len(self._tail))
        if not matched and self._best is None:
            automaton.remember(self._node, piece, node)
        self._node, self._best = node, best
        return self._release(text)

    def _release(self, text: str) -> str:
        """Split `text` (old tail + new piece) into what can be shown and the new tail."""
        keep_from = safe = len(text) - self._automaton.open_length[self._node]
        if self._visible:
            safe = len(text) if self._best is None else self._best[1]
        if self._best is not None:
            self._best = self._best[0] - keep_from, self._best[1] - keep_from
        released = text[self._shown : safe]
        self._tail, self._shown = text[keep_from:], safe - keep_from
        return released

    def _decide(self, text: str, best: tuple[int, int], decided_at: int) -> str:
        begin, end = best
        self.match = StopMatch(text[begin:end], decided_at)
        released = text[self._shown : end if self._visible else begin]
        self._tail, self._shown, self._best = "", 0, best
        return released
