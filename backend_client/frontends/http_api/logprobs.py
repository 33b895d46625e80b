"""Log-probabilities in the two forms of OpenAI's API.

Sans-IO. Rows are added as outputs arrive and taken whenever there is something to send. Knows nothing
about choices or transport.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from backend_client.annotated import BackendOutput
from backend_client.vocabulary import Vocabulary

# OpenAI's word for "practically never"; the contract has -1e30.
LEAST: Final = -9999.0


class LogprobRows(Protocol):
    """The rows of one choice."""

    def add(self, output: BackendOutput) -> None:
        """Take the rows of an output."""
        ...

    def take(self) -> dict[str, object] | None:
        """What was added since the last time; None when nothing was."""
        ...


class ChatRows:
    """`logprobs` of a chat completion: token, bytes and alternatives by row."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._content: list[dict[str, object]] = []

    def add(self, output: BackendOutput) -> None:
        """See LogprobRows."""
        for token_id, logprob, alternatives in rows_of(output):
            entry = self._entry(token_id, logprob)
            entry["top_logprobs"] = [self._entry(*alternative) for alternative in alternatives]
            self._content.append(entry)

    def take(self) -> dict[str, object] | None:
        """See LogprobRows."""
        content, self._content = self._content, []
        return {"content": content, "refusal": None} if content else None

    def _entry(self, token_id: int, logprob: float) -> dict[str, object]:
        return {
            "token": self._vocabulary.token_text(token_id),
            "logprob": max(logprob, LEAST),
            "bytes": list(self._vocabulary.token_bytes(token_id)),
        }


class CompletionRows:
    """`logprobs` of a completion: four columns. `text_offset` counts the characters of the tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._offset = 0
        self._clear()

    def add(self, output: BackendOutput) -> None:
        """See LogprobRows."""
        for token_id, logprob, alternatives in rows_of(output):
            text = self._vocabulary.token_text(token_id)
            self._tokens.append(text)
            self._logprobs.append(max(logprob, LEAST))
            self._offsets.append(self._offset)
            self._offset += len(text)
            self._tops.append(self._top(alternatives))

    def take(self) -> dict[str, object] | None:
        """See LogprobRows."""
        if not self._tokens:
            return None
        columns: dict[str, object] = {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
        }
        self._clear()
        return columns

    def _clear(self) -> None:
        self._tokens: list[str] = []
        self._logprobs: list[float] = []
        self._offsets: list[int] = []
        self._tops: list[dict[str, float]] = []

    def _top(self, alternatives: list[tuple[int, float]]) -> dict[str, float]:
        """Tokens of equal text share a key: the most probable one, which comes first, keeps it."""
        top: dict[str, float] = {}
        for token_id, logprob in alternatives:
            top.setdefault(self._vocabulary.token_text(token_id), max(logprob, LEAST))
        return top


def rows_of(output: BackendOutput) -> Iterator[tuple[int, float, list[tuple[int, float]]]]:
    """Token id, log-probability and alternatives of each token."""
    logprobs = output.log_probs
    alternatives = output.top_logprobs or [[] for _ in logprobs]
    return zip(output.token_ids, logprobs, alternatives, strict=True)
