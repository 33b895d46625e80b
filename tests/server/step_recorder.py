"""A step listener that writes down what every request got, and insists on the rules of delivery."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext, StepEngine, StepOutputs
from enginewire.server.failures import EngineError
from tests.patience import PATIENCE_SECONDS


@dataclass
class Choice:
    """What one choice got."""

    first_position: int | None = None
    token_ids: list[int] = field(default_factory=list)
    outputs: list[pb.LLMEngineOutput] = field(default_factory=list)
    terminal: pb.LLMEngineOutput | None = None

    @property
    def reason(self) -> str:
        """Name of the finish reason, without its prefix."""
        assert self.terminal is not None
        return pb.FinishReason.Name(self.terminal.finish_reason).removeprefix("FINISH_REASON_")

    def add(self, position: int, token_ids: list[int]) -> None:
        assert self.terminal is None, "nothing follows a terminal"
        if self.first_position is None:
            self.first_position = position
        assert position == self.first_position + len(self.token_ids), "no gaps, no duplicates"
        self.token_ids += token_ids


@dataclass
class Answer:
    """What one request got."""

    choices: dict[int, Choice] = field(default_factory=lambda: defaultdict(Choice))
    failure: EngineError | None = None

    @property
    def usage(self) -> pb.CompletionUsage:
        """Usage, from the one terminal that has it."""
        (usage,) = [
            choice.terminal.completion_usage
            for choice in self.choices.values()
            if choice.terminal is not None and choice.terminal.HasField("completion_usage")
        ]
        return usage


class Recorder:
    """Submits requests to an engine and keeps the answers."""

    def __init__(self, engine: StepEngine) -> None:
        self.engine = engine
        self.answers: dict[GenerateContext, Answer] = {}
        self.steps: list[StepOutputs] = []
        self._delivered = asyncio.Event()
        engine.set_step_listener(self.record)

    def submit(
        self,
        request: pb.PreprocessedRequest | None = None,
        *,
        request_id: str = "r",
        deadline: float | None = None,
        **fields: object,
    ) -> tuple[GenerateContext, Answer]:
        """Submit `request`, or one made of `fields`."""
        context = GenerateContext(request_id, deadline=deadline)
        self.engine.submit(request or pb.PreprocessedRequest(**fields), context)
        self.answers[context] = Answer()
        return context, self.answers[context]

    async def run(self, request: pb.PreprocessedRequest | None = None, **fields: object) -> Answer:
        """Submit and wait until the engine is idle."""
        _, answer = self.submit(request, **fields)
        await self.idle()
        return answer

    async def idle(self) -> None:
        """Wait until nothing is running or waiting."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.engine.load().running or self.engine.load().waiting:
                await self.next_step()

    async def next_step(self) -> None:
        """Wait until the engine delivers something."""
        self._delivered.clear()
        await self._delivered.wait()

    def record(self, outputs: StepOutputs) -> None:
        """The step listener."""
        self.steps.append(outputs)
        self._delivered.set()
        assert self.steps[-2:][0].step <= outputs.step
        columns = zip(outputs.contexts, outputs.indexes, outputs.positions, outputs.token_ids, strict=True)
        for context, index, position, token_id in columns:
            self._choice(context, index).add(position, [token_id])
        for context, output in outputs.outputs:
            self._output(self._choice(context, output.index), output)
        for context, failure in outputs.failures:
            assert self.answers[context].failure is None
            self.answers[context].failure = failure

    def _choice(self, context: GenerateContext, index: int) -> Choice:
        assert self.answers[context].failure is None, "nothing follows a failure"
        return self.answers[context].choices[index]

    def _output(self, choice: Choice, output: pb.LLMEngineOutput) -> None:
        assert output.token_ids or output.finish_reason
        choice.add(output.first_output_position, list(output.token_ids))
        choice.outputs.append(output)
        if output.finish_reason:
            choice.terminal = output
