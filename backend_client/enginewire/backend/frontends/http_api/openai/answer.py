"""The JSON of one answer: every choice of every prompt, and what they used.

Sans-IO. A batch of outputs becomes one event per choice that has something to tell. Knows nothing about
what is special about an endpoint, and nothing about sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.endpoint import Endpoint
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.prompt_streams import Placed
from enginewire.backend.frontends.http_api.openai.shown_prompts import ShownPrompt, ShownPrompts

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What every message of an answer begins with. `created` in seconds since the Unix epoch."""

    id: str
    created: int
    model: str

    def fields(self, kind: str) -> dict[str, object]:
        """As JSON fields; `kind` is the object's name."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class Answer:
    """Outputs in, JSON out: `events` for a stream, `add` and `whole` for an answer in one piece."""

    def __init__(
        self,
        endpoint: Endpoint,
        asked: GenerationRequest,
        head: Head,
        vocabulary: Vocabulary,
        prompt_ids: Mapping[int, Sequence[int]],
        prompt_texts: Mapping[int, str] | None = None,
    ) -> None:
        """`prompt_ids` are looked up when an output comes, and only if the answer shows its prompts.

        `prompt_texts` are those that an answer cannot be understood without.
        """
        self._endpoint = endpoint
        self._n = asked.n
        self._include_usage = asked.include_usage
        self._whole = head.fields(endpoint.whole_object)
        self._chunk = head.fields(endpoint.chunk_object)
        if asked.include_usage:
            self._chunk["usage"] = None
        self._choices = [
            Choice(
                index,
                endpoint.rows(asked, vocabulary),
                None if asked.format is None else asked.format.reader((prompt_texts or {}).get(0, "")),
            )
            for index in range(asked.n * len(asked.prompts))
        ]
        self._usages: list[pb.CompletionUsage] = []
        self._shown: ShownPrompts | None = None
        if asked.echo or asked.is_scored:
            self._shown = ShownPrompts(asked, prompt_ids, vocabulary, self._show)

    def add(self, batch: Sequence[Placed]) -> list[Choice]:
        """Take outputs; the choices they belong to. Raises RequestFailed."""
        touched: dict[int, Choice] = {}
        for place, output in batch if self._shown is None else self._shown.ready(batch):
            index = place * self._n + output.index
            choice = touched[index] = self._choices[index]
            choice.add(output)
            if output.completion_usage is not None:
                self._usages.append(output.completion_usage)
        return list(touched.values())

    def _show(self, place: int, prompt: ShownPrompt) -> None:
        for choice in self._choices[place * self._n : (place + 1) * self._n]:
            choice.show(prompt)

    def events(self, batch: Sequence[Placed]) -> bytes:
        """Take outputs; the events they make, none while all text is withheld. Raises RequestFailed."""
        return b"".join(
            event({**self._chunk, "choices": [self._endpoint.chunk(choice)]})
            for choice in self.add(batch)
            if choice.has_news
        )

    def last_events(self) -> bytes:
        """What comes after the last output."""
        if not self._include_usage:
            return DONE
        return event({**self._chunk, "choices": [], "usage": usage_fields(self._usages)}) + DONE

    def whole(self) -> bytes:
        """Everything that was added."""
        choices = [self._endpoint.whole(choice) for choice in self._choices]
        beside = self._endpoint.beside(self._choices)
        return orjson.dumps(
            {**self._whole, "choices": choices, "usage": usage_fields(self._usages), **beside}
        )


def event(fields: dict[str, object]) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % orjson.dumps(fields)


def usage_fields(usages: Sequence[pb.CompletionUsage]) -> dict[str, object]:
    """The sum over all prompts; details only where an engine told them."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    fields: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    details = [usage.prompt_tokens_details for usage in usages]
    if any(each.HasField("cached_tokens") for each in details):
        fields["prompt_tokens_details"] = {"cached_tokens": sum(each.cached_tokens for each in details)}
    return fields
