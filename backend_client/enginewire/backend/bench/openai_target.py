"""OpenAI's completions and chat over HTTP, streamed, as targets of a load.

What a server puts into one event counts as one delivery; how many tokens there were in all is its own
word. Knows nothing about times.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import httpx2

from enginewire.backend.bench.options import BenchOptions
from enginewire.backend.bench.timeline import Delivery, Failed, Piece, Used
from enginewire.backend.bench.workload import Job

PATHS: Final = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
DONE: Final = "[DONE]"
MAX_MESSAGE_CHARACTERS: Final = 200


class OpenAiTarget:
    """A server at `client.base_url`."""

    def __init__(self, client: httpx2.AsyncClient, options: BenchOptions, model: str) -> None:
        self._client = client
        self._options = options
        self._model = model

    async def answer(self, job: Job) -> AsyncGenerator[Piece, None]:
        """See Target."""
        body = body_of(job, self._options, self._model)
        try:
            async with self._client.stream("POST", PATHS[self._options.api], json=body) as response:
                if response.is_error:
                    raise Failed(f"HTTP {response.status_code}: {message_of(await response.aread())}")
                async for line in response.aiter_lines():
                    if (piece := piece_of(line)) is not None:
                        yield piece
        except httpx2.HTTPError as error:
            raise Failed(f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS]) from error


def body_of(job: Job, options: BenchOptions, model: str) -> dict[str, object]:
    """The request. Raises Failed for a prompt that the endpoint cannot take."""
    body: dict[str, object] = {
        "model": model,
        "max_tokens": job.max_tokens,
        "temperature": options.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **prompt_of(job, options),
    }
    if options.ignore_eos:
        # Not OpenAI's own, but every open server has it.
        body["ignore_eos"] = True
    return body


def prompt_of(job: Job, options: BenchOptions) -> dict[str, object]:
    """The prompt as a field of the body. Raises Failed."""
    if options.api == "chat":
        turns = job.messages or (("user", job.text),)
        if job.token_ids:
            raise Failed("a chat cannot take token ids")
        return {"messages": [{"role": role, "content": content} for role, content in turns]}
    if job.messages:
        raise Failed("a completion cannot take messages")
    return {"prompt": job.text or list(job.token_ids)}


def piece_of(line: str) -> Piece | None:
    """What a line of events tells; None when that is nothing to count. Raises Failed."""
    field, _, data = line.partition(":")
    data = data.strip()
    if field != "data" or data == DONE:
        return None
    try:
        event = json.loads(data)
        if event.get("error"):
            raise Failed(message_of(data.encode()))
        if any(map(has_text, event["choices"])):
            return Delivery(None)
        usage = event.get("usage")
        return Used(usage["prompt_tokens"], usage["completion_tokens"]) if usage else None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Failed("an event of no known form") from error


def has_text(choice: Mapping[str, object]) -> bool:
    """The choice has something to show; the first event of a chat has only a role."""
    delta = choice.get("delta")
    return bool(choice.get("text") or (isinstance(delta, dict) and delta.get("content")))


def message_of(data: bytes) -> str:
    """What an error body says."""
    try:
        message = str(json.loads(data)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = data.decode(errors="replace")
    return " ".join(message.split())[:MAX_MESSAGE_CHARACTERS]


async def served_model(client: httpx2.AsyncClient) -> str:
    """The first model that the server lists. Raises Failed."""
    try:
        response = await client.get("/v1/models")
        return str(response.raise_for_status().json()["data"][0]["id"])
    except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
        raise Failed(f"{client.base_url}: no list of models: {error}") from error
