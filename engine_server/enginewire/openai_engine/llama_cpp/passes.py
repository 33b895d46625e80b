"""One request to `/completion`, all tokens of it.

A stream of `llama-server` leaves tokens out: those within a character that takes several. They show in its
count of tokens. They are then computed once more without a stream, with the same seed: such an answer has all
of them, but log-probabilities of some only. Those are told by a request that is made to draw another token.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from enginewire.openai_engine.connection import Connection, Json
from enginewire.openai_engine.drawn import Drawn, Row, ids_of
from enginewire.openai_engine.llama_cpp.facts import COMPLETION
from enginewire.server.failures import EngineMistake

Body = dict[str, Any]

FORCED: Final = 1e6
"""A bias that leaves no choice."""
ENOUGH: Final = 64
"""Alternatives among which a token is looked for first."""


class Passes:
    """The requests to one server. `plain` is a token that is a whole character."""

    def __init__(self, connection: Connection, vocab_size: int, plain: int) -> None:
        self._connection = connection
        self._vocab_size = vocab_size
        self._plain = plain

    @classmethod
    async def of(cls, connection: Connection, vocab_size: int) -> Passes:
        """Ask for such a token."""
        answer = await connection.post("/tokenize", {"content": "a", "add_special": False}, seconds=60.0)
        if not answer.get("tokens"):
            raise EngineMistake("the server has no token for a letter")
        return cls(connection, vocab_size, answer["tokens"][-1])

    async def run(self, body: Body) -> AsyncGenerator[Drawn, None]:
        """The tokens of one request, as they come."""
        if body["n_predict"] == 1:
            for drawn in await self._whole(body):
                yield drawn
            return
        told: list[Drawn] = []
        async with aclosing(self._connection.events(COMPLETION, body)) as events:
            async for event in events:
                fresh = [_drawn(event, token_id) for token_id in event.get("tokens", ())]
                count = event.get("tokens_predicted", 0)
                if count > len(told) + len(fresh):
                    break
                told += fresh
                for drawn in fresh:
                    yield drawn
                if event.get("stop"):
                    return
            else:
                raise EngineMistake("the server's stream ended without a last event")
        for drawn in await self._again(body, told, count):
            yield drawn

    async def _again(self, body: Body, told: list[Drawn], count: int) -> list[Drawn]:
        """What is missing of the first `count` tokens, a part of which was told."""
        known = ids_of(told)
        again = await self._ids(body | {"n_predict": count})
        if again[: len(known)] != known:
            # Rounded the other way: what is not told yet may be drawn anew.
            again = known + await self._ids(_behind(body, known) | {"n_predict": count - len(known)})
        return await self._with_rows(body, known, again[len(known) :])

    async def _whole(self, body: Body) -> list[Drawn]:
        answer = await self._connection.post(COMPLETION, body | {"stream": False})
        ids, rows = answer["tokens"], answer.get("completion_probabilities", ())
        if len(rows) < len(ids):
            return await self._with_rows(body, [], ids)
        return [Drawn(token_id, _row(row)) for token_id, row in zip(ids, rows, strict=True)]

    async def _ids(self, body: Body) -> list[int]:
        answer = await self._connection.post(COMPLETION, body | {"stream": False, "n_probs": 0})
        ids: list[int] = answer["tokens"]
        return ids

    async def _with_rows(self, body: Body, known: list[int], ids: list[int]) -> list[Drawn]:
        if not body["n_probs"]:
            return [Drawn(token_id) for token_id in ids]
        made = []
        for position, token_id in enumerate(ids):
            made.append(Drawn(token_id, await self._row(_behind(body, known + ids[:position]), token_id)))
        return made

    async def _row(self, body: Body, token_id: int) -> Row:
        """The log-probabilities of the token behind a prompt, whatever it is."""
        bias, wanted = [[self._plain, FORCED]], max(body["n_probs"], ENOUGH)
        for most in (min(wanted, self._vocab_size), self._vocab_size):
            asked = {"n_predict": 1, "stream": False, "temperature": 0.0, "logit_bias": bias, "n_probs": most}
            answer = await self._connection.post(COMPLETION, body | asked)
            row = _row(answer["completion_probabilities"][0])
            for other, value in row.alternatives:
                if other == token_id:
                    return Row(value, row.alternatives)
        raise EngineMistake("the server does not tell the log-probability of its token")


def _behind(body: Body, ids: list[int]) -> Body:
    return {**body, "prompt": body["prompt"] + ids, "cache_prompt": True}


def _drawn(event: Json, token_id: int) -> Drawn:
    rows = event.get("completion_probabilities")
    return Drawn(token_id, _row(rows[0]) if rows else None)


def _row(entry: Mapping[str, Any]) -> Row:
    top = tuple((each["id"], each["logprob"]) for each in entry["top_logprobs"])
    return Row(entry["logprob"], top)
