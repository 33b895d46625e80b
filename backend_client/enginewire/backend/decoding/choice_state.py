"""One choice of a request between engine and caller: what came, what was passed on, whose text it is.

Sans-IO. Knows nothing about messages, streams or the other choices.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginewire.backend.decoding.decoder import Decoder, DecodeResult
from enginewire.backend.decoding.detokenizer import DecodeError
from enginewire.backend.decoding.engine_check import EngineCheck
from enginewire.backend.decoding.stop_conditions import InvalidStopConditions


class EngineText:
    """The answer so far of a choice whose text the engine makes."""

    __slots__ = ("pieces", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.pieces: list[str] = []

    def take(self, token_ids: Sequence[int], text: str) -> None:
        """Tokens and text that are passed on together."""
        self.token_ids += token_ids
        self.pieces.append(text)


class ChoiceState:
    """One choice: its decoder, what the engine said about it, and what was passed on."""

    __slots__ = (
        "check",
        "cum_log_probs",
        "decoder",
        "due",
        "engine_finished",
        "engine_text",
        "is_finished",
        "num_dropped",
        "token_ids",
    )

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        # What was passed on: the decoder's own list, or that of `engine_text`.
        self.token_ids = decoder.token_ids
        # While it is set the decoder has had nothing.
        self.engine_text: EngineText | None = None
        # What a lost engine withheld and we would have shown; it comes before what is decoded next.
        self.due = ""
        self.check: EngineCheck | None = None
        self.engine_finished = False
        self.is_finished = False
        # Output tokens the engine sent that were not passed on, because of a local stop.
        self.num_dropped = 0
        self.cum_log_probs: float | None = None

    @property
    def num_received(self) -> int:
        """Output tokens the engine sent."""
        return len(self.token_ids) + self.num_dropped

    def go_on(self, token_ids: list[int], *, is_finished: bool, path: str) -> None:
        """Begin behind what another backend has passed on; `path` is where that is in the request.

        Raises InvalidStopConditions for what no answer can have led to.
        """
        self.is_finished = self.engine_finished = is_finished
        try:
            self.decoder.process(token_ids)
        except DecodeError as error:
            raise InvalidStopConditions(f"{path}.generated_token_ids", str(error)) from error
        if self.decoder.is_finished and not is_finished:
            raise InvalidStopConditions(f"{path}.finished", "a stop condition is met by the tokens before")
        self.token_ids[:] = token_ids
        if is_finished:
            self.decoder.close()

    def begin_engine_text(self) -> None:
        """The engine makes the text, until `take_over`."""
        self.engine_text = EngineText()
        self.token_ids = self.engine_text.token_ids
        self.decoder.rest()

    def take_over(self) -> bool:
        """Decode here from now on; False where the text so far is not the beginning of ours."""
        if self.engine_text is None or self.is_finished:
            return True
        rest = self.decode_behind(())
        if rest is None or self.decoder.is_finished:
            return False
        self.engine_text, self.due = None, rest.text
        self.token_ids = self.decoder.token_ids
        return True

    def decode_behind(self, token_ids: Sequence[int]) -> DecodeResult | None:
        """What we make of tokens that follow those with the engine's text, once.

        None where our text and that of the engine are different already.
        """
        assert self.engine_text is not None
        before, shown = self.engine_text.token_ids, "".join(self.engine_text.pieces)
        try:
            result = self.decoder.process([*before, *token_ids])
        except DecodeError:
            return None
        if len(result.token_ids) < len(before) or not result.text.startswith(shown):
            return None
        result.text = result.text[len(shown) :]
        result.token_ids = result.token_ids[len(before) :]
        result.tokens = result.tokens and result.tokens[len(before) :]
        return result
