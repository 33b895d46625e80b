"""Requests to a backend, and everything that came of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.annotated import Annotated, BackendOutput
from enginewire.backend.engines.failure import Failure
from tests.backend.hostile import PROMPT


def ask(
    prompt: bytes | Sequence[int] = PROMPT, max_tokens: int = 8, **fields: object
) -> pb.PreprocessedRequest:
    """A request for up to `max_tokens` tokens."""
    request = pb.PreprocessedRequest(token_ids=prompt, **fields)
    request.stop_conditions.max_tokens = max_tokens
    return request


@dataclass
class Heard:
    """What a caller got from one request."""

    items: list[Annotated[BackendOutput]] = field(default_factory=list)
    num_inline: int = 0

    @property
    def outputs(self) -> list[BackendOutput]:
        """The data."""
        return [item.data for item in self.items if item.data is not None]

    @property
    def failure(self) -> Failure | None:
        """The error, which only the last item may carry."""
        assert all(item.error is None for item in self.items[:-1])
        return self.items[-1].error if self.items else None

    def text(self, index: int = 0) -> str:
        """Text of a choice; no output may follow its terminal."""
        found, ended = "", False
        for output in self.outputs:
            if output.index == index:
                assert not ended, "an output after the terminal"
                found += output.text
                ended = output.is_terminal
        return found

    def token_ids(self, index: int = 0) -> list[int]:
        """Tokens of a choice, without gaps or repetitions."""
        found: list[int] = []
        for output in self.outputs:
            if output.index == index:
                assert output.first_output_position == len(found)
                found += output.token_ids
        return found

    def finishes(self) -> dict[int, int]:
        """Finish reasons by choice."""
        return {output.index: output.finish_reason for output in self.outputs if output.is_terminal}

    def usage(self) -> tuple[int, int]:
        """Prompt and completion tokens of the last output."""
        usage = self.outputs[-1].completion_usage
        assert usage is not None
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        return usage.prompt_tokens, usage.completion_tokens


async def hear(
    backend: Backend, request: pb.PreprocessedRequest, *, is_inline: bool = False, **options: object
) -> Heard:
    """Everything, to the end, in the order in which it came."""
    heard = Heard()

    def take(output: BackendOutput) -> None:
        heard.items.append(Annotated(output))
        heard.num_inline += 1

    async for item in backend.generate(request, inline=take if is_inline else None, **options):
        heard.items.append(item)
    return heard
