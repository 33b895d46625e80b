"""One choice of a request between engine and caller: what came, what was passed on, whose text it is.

Sans-IO. Knows nothing about messages, streams or the other choices.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend_client.decoder import Decoder
from backend_client.detokenizer import Detokenizer


class EngineTextCheck:
    """Compares the text an engine sends with our own, wherever either of them cuts it."""

    __slots__ = ("_detokenizer", "_ours", "_theirs", "differs")

    def __init__(self, detokenizer: Detokenizer) -> None:
        self.differs = False
        self._detokenizer = detokenizer
        self._ours = ""
        self._theirs = ""

    def compare(self, token_ids: Sequence[int], text: str) -> None:
        """Take the next output; texts of which one begins with the other may still become equal."""
        self._ours += "".join(self._detokenizer.feed(token_ids))
        self._theirs += text
        common = min(len(self._ours), len(self._theirs))
        self.differs |= self._ours[:common] != self._theirs[:common]
        self._ours, self._theirs = self._ours[common:], self._theirs[common:]

    def skip(self, token_ids: Sequence[int]) -> None:
        """Tokens whose text was compared, or shown, elsewhere."""
        self._detokenizer.feed(token_ids)


class ChoiceState:
    """One choice: its decoder, what the engine said about it, and what was passed on."""

    __slots__ = (
        "cum_log_probs",
        "decoder",
        "engine_finished",
        "engine_text",
        "is_finished",
        "num_dropped",
    )

    def __init__(self, decoder: Decoder, engine_text: EngineTextCheck) -> None:
        self.decoder = decoder
        self.engine_text = engine_text
        self.engine_finished = False
        self.is_finished = False
        # Output tokens the engine sent that were not passed on, because of a local stop.
        self.num_dropped = 0
        self.cum_log_probs: float | None = None

    @property
    def token_ids(self) -> list[int]:
        """What was passed on."""
        return self.decoder.token_ids

    @property
    def num_received(self) -> int:
        """Output tokens the engine sent."""
        return len(self.decoder.token_ids) + self.num_dropped
