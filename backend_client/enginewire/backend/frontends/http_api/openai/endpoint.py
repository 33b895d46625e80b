"""What an endpoint has to say for itself. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.body import Body
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.logprobs import LogprobRows


class Endpoint(Protocol):
    """How requests are read and choices are written. `id_prefix` begins the ids of answers.

    What is told about a prompt is told in each of its choices, or else once for all of them.
    """

    id_prefix: str
    whole_object: str
    chunk_object: str
    tells_prompts_in_choices: bool

    def read(self, body: Body) -> GenerationRequest:
        """Raises InvalidBody."""
        ...

    def rows(self, asked: GenerationRequest, vocabulary: Vocabulary) -> LogprobRows | None:
        """Where a choice's log-probabilities go, in this endpoint's form; None when nobody wants them."""
        ...

    def chunk(self, choice: Choice) -> dict[str, object]:
        """What is new in a choice."""
        ...

    def whole(self, choice: Choice) -> dict[str, object]:
        """A choice that has ended."""
        ...

    def beside(self, choices: Sequence[Choice]) -> Mapping[str, object]:
        """What an answer in one piece has beside its choices."""
        ...
