"""What a kind of completions server has to have, to be an engine behind the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from enginewire import v1 as pb
from enginewire.openai_engine.drawn import Drawn


class CompletionsServer(Protocol):
    """One server that was found. Its calls raise Lost, Refused and EngineMistake."""

    kind: str
    """As OpenAI's `owned_by` has it."""
    version: str
    """"" when it says none."""
    config: pb.EngineConfig
    """Without a tokenizer: what the server says of itself, and what it can do."""

    async def identity(self, seconds: float | None) -> object:
        """Equal as long as it is the same server with the same model."""

    def check(self, request: pb.PreprocessedRequest) -> None:
        """Raise Unsupported for a valid request that this kind of server cannot serve truly."""

    def tokens(
        self, request: pb.PreprocessedRequest, index: int, generated: list[int]
    ) -> AsyncGenerator[Drawn, None]:
        """The tokens of a choice that follow `generated`, which ends by itself no earlier than it must.

        Whoever reads decides when the choice ends, and closes the generator: that cancels the request.
        """
