"""Log-probabilities in the two forms of OpenAI's API.

Sans-IO. Rows are added as outputs arrive and taken whenever there is something to send. Knows nothing
about choices or transport.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.vocabulary import Vocabulary

# OpenAI's word for "practically never"; the contract has -1e30.
LEAST: Final = -9999.0


# What vLLM says about a token of a prompt, by token id: the token itself first, then the alternatives.
PromptScore = Mapping[str, Mapping[str, object]]


class Row(NamedTuple):
    """One token. The first one of a prompt has no log-probability; `rank` is None where it is not known."""

    token_id: int
    logprob: float | None
    rank: int | None
    alternatives: Sequence[tuple[int, float]]


class RowForm(NamedTuple):
    """How rows are shown. `selected` are the tokens that the engine scored beside the alternatives."""

    names_by_id: bool = False
    selected: Sequence[int] = ()


class LogprobRows(ABC):
    """The rows of one choice."""

    def __init__(self, vocabulary: Vocabulary, form: RowForm = RowForm()) -> None:  # noqa: B008  # immutable
        self._vocabulary = vocabulary
        self._form = form

    def name(self, token_id: int) -> str:
        """What a token is called."""
        return f"token_id:{token_id}" if self._form.names_by_id else self._vocabulary.token_text(token_id)

    def add(self, output: BackendOutput) -> None:
        """Take the rows of an output."""
        self.add_rows(rows_of(output, self._form.selected))

    @abstractmethod
    def add_rows(self, rows: Iterable[Row]) -> None:
        """Take rows."""

    @abstractmethod
    def take(self) -> dict[str, object] | None:
        """What was added since the last time; None when nothing was."""


class ChatRows(LogprobRows):
    """`logprobs` of a chat completion: token, bytes and alternatives by row."""

    def __init__(self, vocabulary: Vocabulary, form: RowForm = RowForm()) -> None:  # noqa: B008  # immutable
        super().__init__(vocabulary, form)
        self._content: list[dict[str, object]] = []

    def add_rows(self, rows: Iterable[Row]) -> None:
        """See LogprobRows."""
        for row in rows:
            entry = self._entry(row.token_id, row.logprob)
            entry["top_logprobs"] = [self._entry(*alternative) for alternative in row.alternatives]
            self._content.append(entry)

    def take(self) -> dict[str, object] | None:
        """See LogprobRows."""
        content, self._content = self._content, []
        return {"content": content, "refusal": None} if content else None

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, object]:
        return {
            "token": self.name(token_id),
            "logprob": bounded(logprob),
            "bytes": list(self._vocabulary.token_bytes(token_id)),
        }


class CompletionRows(LogprobRows):
    """`logprobs` of a completion: four columns. `text_offset` counts the characters of the tokens."""

    def __init__(self, vocabulary: Vocabulary, form: RowForm = RowForm()) -> None:  # noqa: B008  # immutable
        super().__init__(vocabulary, form)
        self._offset = 0
        self._clear()

    def add_rows(self, rows: Iterable[Row]) -> None:
        """See LogprobRows."""
        for row in rows:
            self._tokens.append(self.name(row.token_id))
            self._logprobs.append(bounded(row.logprob))
            self._offsets.append(self._offset)
            self._offset += len(self._vocabulary.token_text(row.token_id))
            self._tops.append(None if row.logprob is None else self._top(row.alternatives))

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
        self._logprobs: list[float | None] = []
        self._offsets: list[int] = []
        self._tops: list[dict[str, float] | None] = []

    def _top(self, alternatives: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Tokens of equal text share a key: the most probable one, which comes first, keeps it."""
        top: dict[str, float] = {}
        for token_id, logprob in alternatives:
            top.setdefault(self.name(token_id), max(logprob, LEAST))
        return top


def rows_of(output: BackendOutput, selected: Sequence[int] = ()) -> Iterator[Row]:
    """One row per token; `selected` tokens stand behind the alternatives that they are not among."""
    if output.logprobs is None or not selected:
        return _rows(output)
    values, width = output.logprobs.selected_logprobs, len(selected)
    scored = [
        list(zip(selected, values[begin : begin + width], strict=True))
        for begin in range(0, len(values), width)
    ]
    return (_joined(row, more) for row, more in zip(_rows(output), scored, strict=True))


def _joined(row: Row, more: Sequence[tuple[int, float]]) -> Row:
    known = {token_id for token_id, _ in row.alternatives}
    return row._replace(alternatives=[*row.alternatives, *(each for each in more if each[0] not in known)])


def _rows(output: BackendOutput) -> Iterator[Row]:
    logprobs = output.log_probs
    ranks: Sequence[int | None] = output.logprobs.token_ranks if output.logprobs else []
    alternatives = output.top_logprobs or [[] for _ in logprobs]
    columns = zip(output.token_ids, logprobs, ranks or [None] * len(logprobs), alternatives, strict=True)
    return map(Row._make, columns)


def scores_of(rows: Iterable[Row], vocabulary: Vocabulary) -> list[PromptScore | None]:
    """The rows of a prompt as vLLM writes them; None for the first token."""
    return [None if row.logprob is None else _score(row, vocabulary) for row in rows]


def bounded(logprob: float | None) -> float | None:
    """What callers get to see of a log-probability."""
    return None if logprob is None else max(logprob, LEAST)


def _score(row: Row, vocabulary: Vocabulary) -> PromptScore:
    tokens = [(row.token_id, row.logprob, row.rank)]
    tokens += [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(row.alternatives, 1)]
    score: dict[str, Mapping[str, object]] = {}
    for token_id, logprob, rank in tokens:
        text = vocabulary.token_text(token_id)
        fields = {"logprob": bounded(logprob), "rank": rank, "decoded_token": text}
        score.setdefault(str(token_id), fields)
    return score
