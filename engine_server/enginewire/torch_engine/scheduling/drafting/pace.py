"""How long a draft of one choice should be: as long as its next token is worth what it costs.

Knows nothing about how drafts are found.
"""

from __future__ import annotations

FADING = 0.85
"""What is left of an experience after the next one: the last ten or so drafts count."""
SHARE_OF_HOPELESS = 0.75
FIRST_REST, LONGEST_REST = 16, 1024
"""Drafts that are left out before another one is tried; twice as many after each try that fails."""


class Pace:
    """Goes by the drafts so far.

    `row_cost` is what one more row adds to a step, as a part of what a step takes without any.
    """

    def __init__(self, row_cost: float) -> None:
        self._row_cost = row_cost
        # Tokens that were right, and drafts that went wrong: it begins with one of each.
        self._right, self._wrong = 1.0, 1.0
        self._rest, self._rested = FIRST_REST, 0
        self._is_trying = False

    def length(self, most: int, num_sampled: int) -> int:
        """Up to `most` tokens, in a step in which `num_sampled` choices get a token; 0 for no draft.

        In a step of n choices a token costs 1/n of the step and a row, and a drafted one only its row. So
        token number i of a draft pays while the chance that all up to it are right is larger than the share
        that rows have in the step. A large batch is all rows, and drafts end.
        """
        rows = num_sampled * self._row_cost
        share = rows / (1 + rows)
        chance = self._right / (self._right + self._wrong)
        length = 0
        while length < most and chance ** (length + 1) > share:
            length += 1
        return length or self._retry(most, share)

    def note(self, num_drafted: int, num_right: int) -> None:
        """A draft of `num_drafted` tokens turned out to begin with `num_right` right ones."""
        self._right = self._right * FADING + num_right
        self._wrong = self._wrong * FADING + (num_right < num_drafted)
        if self._is_trying:
            self._rest = FIRST_REST if num_right else min(2 * self._rest, LONGEST_REST)
        self._is_trying = False

    def _retry(self, most: int, share: float) -> int:
        """Now and then one token, although it does not seem to pay: the text may have changed."""
        self._rested += 1
        if share > SHARE_OF_HOPELESS or self._rested < self._rest:
            return 0
        self._rested, self._is_trying = 0, True
        return min(most, 1)
