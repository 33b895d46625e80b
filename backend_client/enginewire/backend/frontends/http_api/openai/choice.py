"""What one choice has to tell since it was last asked.

Sans-IO. A stream asks after every batch of outputs, a whole answer once at the end. Knows nothing about
the shape of the JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.finish_reason import openai_finish_reason
from enginewire.backend.frontends.http_api.openai.logprobs import LogprobRows, PromptScore
from enginewire.backend.frontends.http_api.openai.prompts.shown import ShownPrompt
from enginewire.backend.parsing.delta import AnswerReader, Delta
from enginewire.backend.parsing.pieces import Text


class Choice:
    """The text of one choice on its way out. `is_begun` after something was taken.

    `has_news` is False while an output has added nothing that can be shown. `prompt_scores` is None unless
    the prompt's log-probabilities go beside the choice. `token_ids` has the tokens that were added since the
    last time, and `num_tokens` counts all there were.
    """

    __slots__ = (
        "_reader",
        "_rows",
        "_texts",
        "finish_reason",
        "has_news",
        "index",
        "is_begun",
        "num_tokens",
        "prompt_scores",
        "stop_reason",
        "token_ids",
    )

    def __init__(
        self,
        index: int,
        rows: LogprobRows | None,
        reader: AnswerReader | None = None,
        *,
        with_token_ids: bool = False,
    ) -> None:
        """`reader` says what the text means; without one it is taken as it is."""
        self.index = index
        self.is_begun = False
        self.has_news = False
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.prompt_scores: Sequence[PromptScore | None] | None = None
        self.token_ids: list[int] | None = [] if with_token_ids else None
        self.num_tokens = 0
        self._texts: list[str] = []
        self._rows = rows
        self._reader = reader

    @property
    def tells_only_text(self) -> bool:
        """Until it ends."""
        return self._rows is None and self._reader is None and self.token_ids is None

    def show(self, prompt: ShownPrompt) -> None:
        """Begin with the prompt."""
        self.has_news |= bool(prompt.text)
        self._texts.append(prompt.text)
        self.prompt_scores = prompt.scores
        if self._rows is not None:
            self._rows.add_rows(prompt.rows)

    def add(self, output: BackendOutput) -> None:
        """Take the next output."""
        self._read(output)
        self.num_tokens += len(output.token_ids)
        if self.token_ids is not None:
            self.token_ids += output.token_ids
            self.has_news |= bool(output.token_ids)
        if self._rows is not None:
            self._rows.add(output)
            self.has_news |= bool(output.token_ids)
        if output.is_terminal:
            self.finish_reason = openai_finish_reason(output.finish_reason)
            self.stop_reason = output.stop_reason
            if self.finish_reason == "stop" and self._reader is not None and self._reader.has_calls:
                self.finish_reason = "tool_calls"

    def take_delta(self) -> tuple[Delta, dict[str, object] | None]:
        """What the text means and log-probabilities that were added since the last time."""
        text, logprobs = self.take()
        return Delta([Text(text)] if text else []) if self._reader is None else self._reader.take(), logprobs

    def take(self) -> tuple[str, dict[str, object] | None]:
        """Text and log-probabilities that were added since the last time."""
        text = "".join(self._texts)
        self._texts.clear()
        self.is_begun = True
        self.has_news = False
        return text, None if self._rows is None else self._rows.take()

    def _read(self, output: BackendOutput) -> None:
        if self._reader is None:
            self.has_news |= bool(output.text) or output.is_terminal
            self._texts.append(output.text)
            return
        self._reader.feed(output.text)
        if output.is_terminal:
            self._reader.finish()
        self.has_news |= self._reader.has_news or output.is_terminal
