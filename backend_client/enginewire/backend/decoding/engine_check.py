"""Compares what an engine says of its tokens with what they are: their text, and why they end.

Sans-IO, and for one choice. Keeps no more text than the two sides are apart. Knows nothing about what is
shown, and nothing of what it finds has text in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.decoding.decoder import Decoder
from enginewire.backend.decoding.detokenizer import DecodeError
from enginewire.backend.decoding.finish_reason import FINAL, finish_reason

TEXT: Final = "text"
FINISH_REASON: Final = "finish_reason"


class EngineCheck:
    """`differences` says of each kind that was found what it was, for a log."""

    __slots__ = ("_decoder", "_has_begun", "_is_guided", "_ours", "_theirs", "differences")

    def __init__(self, decoder: Decoder, passed_on: Sequence[int], *, is_guided: bool) -> None:
        """`decoder` has the rules that the engine was given; `passed_on` is behind us already."""
        self.differences: dict[str, str] = {}
        self._decoder = decoder
        self._is_guided = is_guided
        self._has_begun = False
        self._ours = ""
        # None for an engine that sends no text.
        self._theirs: str | None = None
        self._decode(passed_on)
        self._ours = ""

    def compare(
        self,
        passed_on: Sequence[int],
        token_ids: Sequence[int],
        text: str | None,
        reason: pb.FinishReason.ValueType,
    ) -> None:
        """Take the next output; texts of which one begins with the other may still become equal.

        `passed_on` are all tokens before it, for some may have come without an output.
        """
        self._decode(passed_on[self._decoder.num_generated :])
        self._decode(token_ids)
        if reason and not self._decoder.is_finished:
            self._ours += self._decoder.finish().text
        if text is not None and not (self._has_begun and self._theirs is None):
            self._theirs = (self._theirs or "") + text
        self._has_begun = True
        self._compare_text(is_whole=bool(reason) and reason not in FINAL)
        self._compare_reason(reason)

    def _decode(self, token_ids: Sequence[int]) -> None:
        try:
            self._ours += self._decoder.process(token_ids).text
        except DecodeError:
            # The choice ends with it, where the text is made.
            self._decoder.close()

    def _compare_text(self, *, is_whole: bool) -> None:
        if self._theirs is None:
            self._ours = ""
            return
        common = min(len(self._ours), len(self._theirs))
        is_equal = self._ours[:common] == self._theirs[:common]
        self._ours, self._theirs = self._ours[common:], self._theirs[common:]
        if not is_equal or (is_whole and (self._ours or self._theirs)):
            place = f"within its first {self._decoder.num_generated} tokens"
            self.differences.setdefault(TEXT, f"is not what its token ids say, {place}")

    def _compare_reason(self, reason: pb.FinishReason.ValueType) -> None:
        ours = finish_reason(self._decoder.stop_trigger, pb.FINISH_REASON_UNSPECIFIED)
        if reason == ours or reason in FINAL or (not ours and self._may_know_more(reason)):
            return
        self.differences.setdefault(
            FINISH_REASON, f"is {_name(reason)} where its token ids say {_name(ours)}"
        )

    def _may_know_more(self, reason: pb.FinishReason.ValueType) -> bool:
        """The context window is full, or the grammar allows nothing more."""
        return reason == pb.FINISH_REASON_LENGTH or (self._is_guided and reason == pb.FINISH_REASON_EOS)


def _name(reason: pb.FinishReason.ValueType) -> str:
    return pb.FinishReason.Name(reason).removeprefix("FINISH_REASON_")
