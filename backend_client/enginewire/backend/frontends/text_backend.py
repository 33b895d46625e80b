"""A backend together with its tokenizer: what every face calls with a prompt.

Holds the way from BackendServiceGenerateRequest to annotated outputs. Knows nothing about any face.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, cast

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.annotated import Annotated, BackendOutput
from enginewire.backend.embedding import Embeddings, renamed
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.inline_decoder import Inline, RequestTracker
from enginewire.backend.prompting.annotations import answers, take_ours
from enginewire.backend.prompting.conversation import Conversation
from enginewire.backend.prompting.prompts import (
    WHOLE_PROMPT,
    Prompt,
    PromptFit,
    characters_of,
    encode_inputs,
    preprocess,
)
from enginewire.backend.prompting.tokenizer import BackendTokenizer

# Tokenizing more than this takes longer than the other requests should wait.
MAX_INLINE_CHARACTERS: Final = 16_384

Items = AsyncGenerator[Annotated[BackendOutput], None]


class TextBackend:
    """Prompts in, annotated text out."""

    def __init__(self, backend: Backend, tokenizer: BackendTokenizer) -> None:
        self.backend = backend
        self.tokenizer = tokenizer

    async def generate(
        self,
        asked: pb.BackendServiceGenerateRequest,
        *,
        conversation: Conversation | None = None,
        fit: PromptFit = WHOLE_PROMPT,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        tracker: RequestTracker | None = None,
        with_tokens: bool = False,
        inline: Inline | None = None,
        face: str = "",
    ) -> Items:
        """The outputs, before the first what was asked about the prompt; an error comes last.

        A `conversation` is the prompt instead of that of `asked`. Raises InvalidPrompt before the first item.
        Closing the iterator aborts the request; `timeout` in seconds. Tokens as text come with
        log-probabilities and for `with_tokens`. `inline` and `face` as in Backend.
        """
        request, prompt = await self.preprocess(asked, conversation, fit)
        # A refused request gets nothing but the refusal, so these wait for the first output.
        annotations = list(answers(take_ours(request), prompt))
        outputs = self.backend.generate(
            request,
            request_id=asked.request_id,
            timeout=timeout,
            metadata=metadata,
            with_tokens=with_tokens or request.output_options.HasField("logprobs"),
            tracker=tracker,
            inline=inline,
            face=face,
        )
        # Declared as an iterator, but its documentation promises that it can be closed.
        async with aclosing(cast(Items, outputs)) as items:
            async for item in items:
                while annotations and item.error is None:
                    yield annotations.pop(0)
                yield item

    async def embed(
        self,
        inputs: Sequence[str | Sequence[int]],
        rest: pb.PreprocessedEmbeddingRequest,
        *,
        path: str,
        request_id: str = "",
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Embeddings:
        """The vectors of texts and of token ids, in order. Raises InvalidPrompt and RequestFailed.

        `rest` is everything else that is asked for; `path` is what failures call the inputs.
        """
        request = pb.PreprocessedEmbeddingRequest()
        request.CopyFrom(rest)
        num_characters = sum(len(each) for each in inputs if isinstance(each, str))
        if num_characters <= MAX_INLINE_CHARACTERS:
            encoded = encode_inputs(inputs, self.tokenizer, path)
        else:
            encoded = await asyncio.to_thread(encode_inputs, inputs, self.tokenizer, path)
        request.token_ids.extend(pb.TokenSequence(token_ids=ids) for ids in encoded)
        try:
            return await self.backend.embed(
                request, request_id=request_id, timeout=timeout, metadata=metadata
            )
        except RequestFailed as error:
            raise renamed(error, "token_ids", path) from error

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a text. Raises ValueError."""
        if len(text) <= MAX_INLINE_CHARACTERS:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)

    async def preprocess(
        self,
        asked: pb.BackendServiceGenerateRequest,
        conversation: Conversation | None = None,
        fit: PromptFit = WHOLE_PROMPT,
    ) -> tuple[pb.PreprocessedRequest, Prompt]:
        """The request for the engine and the prompt in it. Raises InvalidPrompt."""
        num_characters = characters_of(asked) if conversation is None else conversation.num_characters
        if num_characters <= MAX_INLINE_CHARACTERS:
            return preprocess(asked, self.tokenizer, conversation, fit)
        return await asyncio.to_thread(preprocess, asked, self.tokenizer, conversation, fit)
