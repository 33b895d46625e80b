"""Prompts that an answer shows: in front of its text (`echo`), or scored beside it (`prompt_logprobs`).

Sans-IO. The engine scores a prompt with the first output of choice 0, so what other choices say before that
waits. Knows nothing about the JSON of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import grpc

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.detokenizer import DecodeError
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.failure import failed, violation
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.logprobs import PromptScore, Row, rows_of, scores_of
from enginewire.backend.frontends.http_api.openai.prompts.streams import Placed


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """One prompt: `text` and `rows` go in front of the answer, `scores` beside it."""

    text: str
    rows: Sequence[Row]
    scores: Sequence[PromptScore | None] | None


class ShownPrompts:
    """The prompts of one answer. `show` gets each with its place, before any output of it passes."""

    def __init__(
        self,
        asked: GenerationRequest,
        prompt_ids: Mapping[int, Sequence[int]],
        vocabulary: Vocabulary,
        show: Callable[[int, ShownPrompt], None],
    ) -> None:
        """`prompt_ids` has the ids of a prompt once it has an output."""
        self._asked = asked
        self._prompt_ids = prompt_ids
        self._vocabulary = vocabulary
        self._show = show
        self._early: dict[int, list[Placed]] = {place: [] for place in range(len(asked.prompts))}

    def ready(self, batch: Sequence[Placed]) -> Iterator[Placed]:
        """Outputs whose prompt was shown. Raises RequestFailed for scores that are not the prompt's."""
        for place, output in batch:
            early = self._early.get(place)
            if early is not None and output.index:
                early.append((place, output))
                continue
            if early is not None:
                self._show(place, self._shown(place, output.prompt_logprobs))
                del self._early[place]
            for passing in [(place, output), *(early or ())]:
                yield self._unspoken(passing) if self._asked.is_prompt_only else passing

    def _shown(self, place: int, scores: pb.PromptLogprobs | None) -> ShownPrompt:
        token_ids = self._prompt_ids[place]
        rows = self._rows(token_ids, scores) if self._asked.is_scored else []
        return ShownPrompt(
            self._text(place, token_ids) if self._asked.echo else "",
            rows if self._asked.echo else [],
            scores_of(rows, self._vocabulary) if self._asked.with_prompt_logprobs else None,
        )

    def _rows(self, token_ids: Sequence[int], scores: pb.PromptLogprobs | None) -> list[Row]:
        """One per token. The first one has no log-probability."""
        scored = BackendOutput(token_ids=token_ids[1:], logprobs=scores.logprobs if scores else pb.Logprobs())
        if len(scored.log_probs) != len(scored.token_ids):
            raise violation(f"{len(scored.log_probs)} prompt_logprobs for {len(token_ids)} prompt tokens")
        return [Row(token_ids[0], None, None, []), *rows_of(scored)]

    def _text(self, place: int, token_ids: Sequence[int]) -> str:
        prompt = self._asked.prompts[place]
        is_cut = self._asked.tokenizer_fields.truncate_prompt_tokens is not None
        if prompt.WhichOneof("prompt") == "text" and not is_cut:
            return prompt.text
        options = prompt.request.output_options
        skip = options.skip_special_tokens if options.HasField("skip_special_tokens") else True
        stream = self._vocabulary.detokenizer(skip_special_tokens=skip)
        try:
            text = "".join(stream.feed(token_ids))
            # A character that the prompt only begins is shown by the answer, when there is one.
            return text + stream.flush() if self._asked.is_prompt_only else text
        except DecodeError as error:
            raise failed(grpc.StatusCode.INTERNAL, pb.ERROR_REASON_INTERNAL, str(error)) from error

    def _unspoken(self, placed: Placed) -> Placed:
        """The output without the token that the engine had to generate."""
        place, output = placed
        usage = output.completion_usage
        if usage is not None:
            usage = pb.CompletionUsage(prompt_tokens=usage.prompt_tokens, total_tokens=usage.prompt_tokens)
        return place, replace(output, token_ids=(), text="", logprobs=None, completion_usage=usage)
