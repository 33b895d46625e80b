"""Prompt lookup: what followed the last tokens of a text when they stood there before.

Knows nothing about requests, models or whether a guess was right.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq


class NgramFinder:
    """One growing text, in which the last `shortest` to `longest` tokens are looked up."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = [*range(longest, shortest, -1), shortest]
        # A character stands for a token, whatever it means to people: nothing is searched faster.
        self._text = ""

    def find(self, token_ids: Seq[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow the text, which only grows from call to call.

        The longest match counts, and of equal ones the last: what came lately comes again sooner. A match
        that reaches the end of the text goes on into its own guess, so that a short period is guessed on.
        """
        self._text += "".join(map(chr, token_ids[len(self._text) :]))
        place = self._behind_longest_match()
        if place is None or most <= 0:
            return []
        found = [*map(ord, self._text[place : place + most])]
        period = len(found)
        while len(found) < most:
            found.append(found[-period])
        return found

    def _behind_longest_match(self) -> int | None:
        """Where the text went on when it ended like this before."""
        if self._last_end(self._lengths[-1]) is None:  # then there is no longer one either
            return None
        return next(end for length in self._lengths if (end := self._last_end(length)) is not None)

    def _last_end(self, length: int) -> int | None:
        """The end of the last place but one of the last `length` tokens."""
        if length >= len(self._text):
            return None
        place = self._text.rfind(self._text[-length:], 0, len(self._text) - 1)
        return None if place < 0 else place + length
