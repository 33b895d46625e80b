"""POST /tokenize and POST /detokenize: which tokens a prompt becomes, and the text of tokens. As in vLLM.

Nothing is generated, so both are answered while the engine has no room for requests. Knows nothing about
sending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import orjson

from enginewire.backend.decoding.detokenizer import DecodeError
from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.calls.post_route import PostRoute
from enginewire.backend.frontends.http_api.calls.reply import Reply
from enginewire.backend.frontends.http_api.openai.chat import ChatEndpoint
from enginewire.backend.frontends.http_api.openai.generate_route import ServedBackend
from enginewire.backend.frontends.http_api.refusal import Refused, invalid_prompt
from enginewire.backend.prompting.prompts import InvalidPrompt
from enginewire.backend.prompting.tokenizer import BackendTokenizer

Read = TypeVar("Read")

# Looking up more than this takes longer than other requests should wait.
MAX_INLINE_TOKENS: Final = 4096


class TokenizeRoute(PostRoute):
    """The ASGI application of /tokenize."""

    def __init__(self, served: ServedBackend) -> None:
        self._served = served
        self._tokenizer = served.backend.tokenizer

    async def answer(self, body: Body, reply: Reply, trace: Mapping[str, str]) -> None:
        """Raises InvalidBody, Refused and RequestFailed."""
        wants_strings = body.flag("return_token_strs")
        config = await self._served.config_of(body.text("model"))
        token_ids = await self._token_ids(body)
        fields = {
            "count": len(token_ids),
            "max_model_len": config.context_length if config.HasField("context_length") else None,
            "tokens": token_ids,
            "token_strs": await aside(self._tokenizer.pieces, token_ids) if wants_strings else None,
        }
        await reply.whole(orjson.dumps(fields))

    async def _token_ids(self, body: Body) -> Sequence[int]:
        text = body.text("prompt")
        if (text is None) == (body.get("messages") is None):
            raise InvalidBody("prompt", "exactly one of prompt and messages is needed")
        if text is None:
            return await self._of_messages(body)
        wants_special = body.get("add_special_tokens") is None or body.flag("add_special_tokens")
        try:
            return await self._served.backend.encode(text, add_special_tokens=wants_special)
        except ValueError as error:
            raise InvalidBody("prompt", str(error)) from error

    async def _of_messages(self, body: Body) -> Sequence[int]:
        """The same reading as that of a chat completion, so the tokens are those it would send."""
        asked = ChatEndpoint(self._served.formats).read(body)
        try:
            _, prompt = await self._served.backend.preprocess(asked.prompts[0], asked.conversation)
        except InvalidPrompt as error:
            raise Refused(invalid_prompt(error, asked.param_of)) from error
        return prompt.token_ids


class DetokenizeRoute(PostRoute):
    """The ASGI application of /detokenize."""

    def __init__(self, served: ServedBackend) -> None:
        self._served = served

    async def answer(self, body: Body, reply: Reply, trace: Mapping[str, str]) -> None:
        """Raises InvalidBody, Refused and RequestFailed."""
        if body.get("tokens") is None:
            raise InvalidBody("tokens", "must be a list of token ids, but is missing or null")
        token_ids = body.integers("tokens")
        await self._served.config_of(body.text("model"))
        text = await aside(partial(text_of, self._served.backend.tokenizer), token_ids)
        await reply.whole(orjson.dumps({"prompt": text}))


async def aside(work: Callable[[Sequence[int]], Read], token_ids: Sequence[int]) -> Read:
    """What `work` makes of tokens, in a thread of its own when they are many."""
    if len(token_ids) <= MAX_INLINE_TOKENS:
        return work(token_ids)
    return await asyncio.to_thread(work, token_ids)


def text_of(tokenizer: BackendTokenizer, token_ids: Sequence[int]) -> str:
    """The text with its special tokens. Raises InvalidBody."""
    try:
        tokenizer.pieces(token_ids)
        return tokenizer.decode(token_ids, skip_special_tokens=False)
    except LookupError as error:
        raise InvalidBody(f"tokens[{error.args[0]}]", "no token of this model") from error
    except DecodeError as error:
        raise InvalidBody("tokens", str(error)) from error
