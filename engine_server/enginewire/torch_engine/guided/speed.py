"""Whether a grammar can be followed quickly enough, tried before any request with it is accepted.

A short guide may compile at once and then take seconds per token, where it is ambiguous: in `(a{1,100}){100}`
every `a` may belong to any group. How it is written does not tell; a walk through it does. Runs in the
process that compiles, within its limits. Knows nothing about any one library.
"""

from __future__ import annotations

from random import Random

import numpy

from enginewire.server.engines.guides.schema import InvalidGuide
from enginewire.torch_engine.guided.library import Library
from enginewire.torch_engine.guided.matcher import GuidedMatcher

TOKENS = 32
"""Length of the walk. What becomes slow later still ends alone, when it does."""
SECONDS_AT_START = 0.1
"""Less than the engine grants: what the walk takes up would be missing there."""


def check_speed(library: Library, compiled: bytes) -> None:
    """Raise InvalidGuide for a grammar that is too slow to follow at random tokens that it allows."""
    grammar, random = library.load(compiled), Random(0)
    # Some token has to end a match, or one that may be empty would be over before it begins.
    ending = library.vocab_size - 1
    masks = numpy.full((1, -(-library.vocab_size // 32)), -1, dtype=numpy.int32)
    matcher = GuidedMatcher(grammar.start([ending]), SECONDS_AT_START)
    for _ in range(TOKENS):
        is_quick = matcher.fill(masks, 0)
        allowed = numpy.flatnonzero(numpy.unpackbits(masks[0].view(numpy.uint8), bitorder="little"))
        going_on = allowed[allowed < ending]
        if is_quick and not len(going_on):
            return
        if not is_quick or not matcher.accept(int(random.choice(going_on))):
            raise InvalidGuide("too slow to follow: it is too ambiguous")
