"""The outputs of all prompts of one request, as one stream of batches.

Everything that has arrived is read at once, so that a step of the engine becomes one write. Knows nothing
about HTTP beyond the refusal that ends a stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Final, Self

import grpc

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.engines.failure import Failure, internal_failure
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.refusal import Refusal, Refused, invalid_prompt, refusal_of
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.annotations import FORMATTED_PROMPT, PROMPT_IDS
from enginewire.backend.prompting.prompts import InvalidPrompt, PromptFit

# A reader this far behind makes the backend wait, and that in the end the engine.
MAX_WAITING_OUTPUTS: Final = 256
UNFINISHED: Final = frozenset({pb.FINISH_REASON_ERROR, pb.FINISH_REASON_CANCELLED})

Placed = tuple[int, BackendOutput]

Take = Callable[[BackendOutput], bool]
"""Takes an output in the pass over the engine's frame; False, and nothing taken, when it has to wait."""


class PromptStreams:
    """Use as a context: leaving it aborts whatever still runs. One reader.

    `prompt_ids` has the tokens of each prompt, by its place, that asked for them and has an output, and
    `prompt_texts` the texts.
    """

    def __init__(
        self,
        backend: TextBackend,
        asked: GenerationRequest,
        fit: PromptFit,
        timeout: float | None,
        answer_id: str,
        trace: Mapping[str, str],
    ) -> None:
        """`timeout` in seconds. The requests get ids that begin with `answer_id`, and one `trace`."""
        self._backend = backend
        self._asked = asked
        self._fit = fit
        self._timeout = timeout
        self._answer_id = answer_id
        self._trace = trace
        self.prompt_ids: dict[int, Sequence[int]] = {}
        self.prompt_texts: dict[int, str] = {}
        self._waiting: list[Placed] = []
        # Set while the reader waits, if it wants to be given outputs without being woken.
        self._take: Take | None = None
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._num_live = len(asked.prompts)
        self._error: BaseException | None = None

    async def __aenter__(self) -> Self:
        for place, prompt in enumerate(self._asked.prompts):
            prompt.request_id = f"{self._answer_id}-{place}"
            task = asyncio.create_task(self._pump(place, prompt), name=prompt.request_id)
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def read(self, take: Take | None = None) -> list[Placed]:
        """Everything that has arrived as (place of the prompt, output); empty at the end.

        What arrives meanwhile in the answer to one prompt with one choice is offered to `take`, where it is
        nothing but text. Raises Refused when a prompt failed, once everything before the failure was read.
        """
        self._take = take
        try:
            while not self._waiting and self._error is None and self._num_live:
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            self._take = None
        if not self._waiting and self._error is not None:
            raise self._error
        batch, self._waiting = self._waiting, []
        self._room.set()
        return batch

    def refuse(self, refusal: Refusal) -> None:
        """End the stream from outside."""
        self._fail(Refused(refusal))

    async def _pump(self, place: int, prompt: pb.BackendServiceGenerateRequest) -> None:
        """Raises Refused."""
        # The backend's own answer comes first; whatever an engine calls by that name is no list for us.
        wants_ids = prompt.request.output_options.return_tokens_as_token_ids
        wants_text = prompt.request.output_options.formatted_prompt
        param_of = partial(self._asked.param_of_prompt, place)
        try:
            answer = self._backend.generate(
                prompt,
                conversation=self._asked.conversation,
                fit=self._fit,
                timeout=self._timeout,
                metadata=self._trace,
                with_tokens=self._asked.with_tokens,
                # Several choices of a step are one write: that is worth waking the reader for.
                inline=self._take_inline if self._asked.num_choices == 1 else None,
                face="HTTP",
            )
            async with aclosing(answer) as items:
                async for item in items:
                    if item.error is not None:
                        raise Refused(refusal_of(item.error, param_of))
                    if item.event == PROMPT_IDS and wants_ids and place not in self.prompt_ids:
                        self.prompt_ids[place] = json.loads(item.comment[0])
                    if item.event == FORMATTED_PROMPT and wants_text and place not in self.prompt_texts:
                        self.prompt_texts[place] = item.comment[0]
                    if item.data is not None:
                        await self._put(place, item.data)
        except InvalidPrompt as error:
            raise Refused(invalid_prompt(error, param_of)) from error

    async def _put(self, place: int, output: BackendOutput) -> None:
        self._check(output)
        self._waiting.append((place, output))
        self._arrived.set()
        if len(self._waiting) > MAX_WAITING_OUTPUTS:
            self._room.clear()
            await self._room.wait()

    def _take_inline(self, output: BackendOutput) -> bool:
        """Hand on, or let it wait for the reader; True when enough is waiting. Raises Refused."""
        self._check(output)
        if self._take is not None and not self._waiting and self._take(output):
            return False
        self._waiting.append((0, output))
        self._arrived.set()
        return len(self._waiting) > MAX_WAITING_OUTPUTS

    def _check(self, output: BackendOutput) -> None:
        if output.finish_reason in UNFINISHED:
            raise Refused(refusal_of(unfinished(output), self._asked.param_of))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._num_live -= 1
        self._arrived.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._arrived.set()


def unfinished(output: BackendOutput) -> Failure:
    """Why a choice has no normal end; the contract gives a choice's failure a message, not a reason."""
    if output.finish_reason == pb.FINISH_REASON_CANCELLED:
        code, reason = grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_DRAINING
        return Failure(code.value[0], reason, "the engine ended the request before it was finished")
    return internal_failure(output.error_message or "the engine failed")
