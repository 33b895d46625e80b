"""The JSON of one answer: every choice of every prompt, and what they used.

Sans-IO. A batch of outputs becomes one event per choice that has something to tell. Knows nothing about
what is special about an endpoint, and nothing about sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.endpoint import Endpoint
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.prompts.shown import ShownPrompt, ShownPrompts
from enginewire.backend.frontends.http_api.openai.prompts.streams import Placed
from enginewire.backend.frontends.http_api.openai.text_event import ANY_TEXT, TextEvent
from enginewire.backend.frontends.http_api.refusal import Refusal

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


class ToldIds(NamedTuple):
    """Ids of tokens as JSON fields: those of a choice, and those beside all choices."""

    in_choice: Mapping[str, Sequence[int]]
    beside: Mapping[str, Sequence[int]]


NO_IDS: Final = ToldIds({}, {})


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
        self._has_usage_everywhere = asked.has_usage_everywhere
        self._prompt_ids = prompt_ids
        # Prompts whose tokens the stream has told, where it tells them once for all choices.
        self._told: set[int] = set()
        self._whole = head.fields(endpoint.whole_object)
        self._chunk = head.fields(endpoint.chunk_object)
        if asked.include_usage:
            self._chunk["usage"] = None
        self._choices = [
            Choice(
                index,
                endpoint.rows(asked, vocabulary),
                None if asked.format is None else asked.format.reader((prompt_texts or {}).get(0, "")),
                with_token_ids=asked.with_token_ids,
            )
            for index in range(asked.n * len(asked.prompts))
        ]
        self._usages: list[pb.CompletionUsage] = []
        self._shown: ShownPrompts | None = None
        if asked.echo or asked.is_scored:
            self._shown = ShownPrompts(asked, prompt_ids, vocabulary, self._show)
        # Of choices that have begun and tell nothing but text, by index.
        self._text_events: dict[int, TextEvent] = {}

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
        if len(batch) == 1:
            place, output = batch[0]
            text_event = self._text_events.get(place * self._n + output.index)
            if text_event is not None and output.text and not output.finish_reason:
                return text_event.of(output.text)
        return b"".join(self._event(choice) for choice in self.add(batch) if choice.has_news)

    def _event(self, choice: Choice) -> bytes:
        is_first = not choice.is_begun
        piece = self._endpoint.chunk(choice)
        fields: dict[str, object] = {**self._chunk, "choices": [piece]}
        if choice.token_ids is not None:
            ids = self._ids(choice, is_first=is_first)
            piece |= ids.in_choice
            fields |= ids.beside
        if self._has_usage_everywhere:
            fields["usage"] = usage_so_far(len(self._prompt_ids[choice.index // self._n]), choice.num_tokens)
        elif is_first and choice.tells_only_text and self._shown is None:
            self._text_events[choice.index] = self._text_event(choice.index)
        return event(fields)

    def _text_event(self, index: int) -> TextEvent:
        choice = Choice(index, None)
        choice.is_begun = True
        choice.add(BackendOutput(text=ANY_TEXT))
        return TextEvent(event({**self._chunk, "choices": [self._endpoint.chunk(choice)]}))

    def last_events(self) -> bytes:
        """What comes after the last output."""
        if not self._include_usage:
            return DONE
        return event({**self._chunk, "choices": [], "usage": usage_fields(self._usages)}) + DONE

    def failed(self, refusal: Refusal) -> bytes:
        """The end of a stream that cannot go on."""
        return b"data: %b\n\n%b" % (refusal.body, DONE)

    def whole(self) -> bytes:
        """Everything that was added."""
        told = [self._ids(choice, is_first=True) for choice in self._choices]
        choices = [
            {**self._endpoint.whole(choice), **ids.in_choice}
            for choice, ids in zip(self._choices, told, strict=True)
        ]
        beside = {**self._endpoint.beside(self._choices), **told[0].beside}
        return orjson.dumps(
            {**self._whole, "choices": choices, "usage": usage_fields(self._usages), **beside}
        )

    def _ids(self, choice: Choice, *, is_first: bool) -> ToldIds:
        """What `return_token_ids` adds now, with the prompt's ids where they were not told yet."""
        if choice.token_ids is None:
            return NO_IDS
        token_ids, choice.token_ids = choice.token_ids, []
        in_choice = {"token_ids": token_ids}
        place = choice.index // self._n
        prompt = {"prompt_token_ids": list(self._prompt_ids[place])}
        if self._endpoint.tells_prompts_in_choices:
            return ToldIds({**in_choice, **prompt} if is_first else in_choice, {})
        is_told = place in self._told
        self._told.add(place)
        return ToldIds(in_choice, {} if is_told else prompt)


def event(fields: dict[str, object]) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % orjson.dumps(fields)


def usage_so_far(prompt: int, completion: int) -> dict[str, object]:
    """Counts of tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def usage_fields(usages: Sequence[pb.CompletionUsage]) -> dict[str, object]:
    """The sum over all prompts; details only where an engine told them."""
    fields = usage_so_far(
        sum(usage.prompt_tokens for usage in usages), sum(usage.completion_tokens for usage in usages)
    )
    details = [usage.prompt_tokens_details for usage in usages]
    if any(each.HasField("cached_tokens") for each in details):
        fields["prompt_tokens_details"] = {"cached_tokens": sum(each.cached_tokens for each in details)}
    drafts = [usage.completion_tokens_details for usage in usages]
    if any(each.HasField("accepted_prediction_tokens") for each in drafts):
        fields["completion_tokens_details"] = {
            "accepted_prediction_tokens": sum(each.accepted_prediction_tokens for each in drafts),
            "rejected_prediction_tokens": sum(each.rejected_prediction_tokens for each in drafts),
        }
    return fields
