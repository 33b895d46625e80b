"""What an engine sends wrong ends its own request, is explained in the log, and harms nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from enginewire import v1 as pb
from enginewire.server.engines.answer import usage
from enginewire.server.engines.interface import GenerateContext, StepListener, StepOutputs
from enginewire.server.engines.iterator_driver import IteratorDriver
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.failures import ERROR_ID
from tests.server.engines.test_shape import Good
from tests.server.serving import ask

VOCAB = 256
Spoil = Callable[[StepOutputs, GenerateContext], None]


class Spoiled(MockerEngine):
    """A mocker whose steps are spoiled for the request `bad`, once, when it has two tokens."""

    def __init__(self, spoil: Spoil) -> None:
        super().__init__(MockerOptions(itl_ms=1.0))
        self._spoil: Spoil | None = spoil

    def set_step_listener(self, listener: StepListener) -> None:
        def spoiling(outputs: StepOutputs) -> None:
            for context, position in zip(outputs.contexts, outputs.positions, strict=True):
                if self._spoil and context.request_id == "bad" and position >= 2:
                    self._spoil(outputs, context)
                    self._spoil = None
                    break
            listener(outputs)

        super().set_step_listener(spoiling)


def row(name: str, change: Callable[[int], int]) -> Spoil:
    def spoil(outputs: StepOutputs, context: GenerateContext) -> None:
        column = getattr(outputs, name)
        at = outputs.contexts.index(context)
        column[at] = change(column[at])

    return spoil


def extra(**fields: object) -> Spoil:
    """An output of the request beside its row."""

    def spoil(outputs: StepOutputs, context: GenerateContext) -> None:
        at = outputs.contexts.index(context)
        fields.setdefault("first_output_position", outputs.positions[at] + 1)
        outputs.outputs.append((context, pb.LLMEngineOutput(**fields)))

    return spoil


def shorten(outputs: StepOutputs, context: GenerateContext) -> None:
    outputs.token_ids.pop()


ALWAYS = [
    (row("token_ids", lambda _: VOCAB + 5), "token id 261 is not below vocab_size"),
    (row("token_ids", lambda _: -1), "token id -1 is not below vocab_size"),
    (extra(token_ids=[VOCAB + 5]), "token id 261 is not below vocab_size"),
    (extra(token_ids=[VOCAB + 2]), "token id 258 is not below vocab_size"),
]
FULLY = [
    (row("positions", lambda position: position + 1), "expected"),
    (row("positions", lambda position: 0), "position 0 of choice 0"),
    (row("indexes", lambda _: 3), "choice 3 has ended or was not asked for"),
    (extra(), "an output without token_ids"),
    (extra(token_ids=[1], completion_usage=usage(1, 1)), "completion_usage belongs to an output with"),
    (extra(token_ids=[1], logprobs=pb.Logprobs(token_logprobs=[0.0])), "logprobs that were not asked for"),
    (extra(finish_reason=pb.FINISH_REASON_STOP), "FINISH_REASON_STOP after token id None"),
    (extra(finish_reason=pb.FINISH_REASON_LENGTH), "completion_usage.prompt_tokens is 0, expected 5"),
    (
        extra(finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=usage(5, 99)),
        "completion_usage.completion_tokens is 99",
    ),
]


@pytest.mark.parametrize(
    ("spoil", "sentence", "checks"),
    [(*each, checks) for each in ALWAYS for checks in (False, True)] + [(*each, True) for each in FULLY],
)
async def test_a_mistake_ends_its_request_and_neighbours_go_on(
    engine_server, caplog, spoil, sentence, checks
):
    serving = await engine_server(Spoiled(spoil), check_engine=checks)
    bad, good = await asyncio.gather(
        serving.generate(ask("bad", max_tokens=12)), serving.generate(ask("good", max_tokens=12))
    )
    assert good.usage() == (5, 12)
    assert bad.failure.reason == pb.ERROR_REASON_INTERNAL
    [line] = [record.getMessage() for record in caplog.records if "internal error" in record.getMessage()]
    assert bad.failure.metadata[ERROR_ID] in line
    assert "request bad" in line
    assert sentence in line
    await serving.until_idle()


async def test_columns_of_unequal_length_fail_whom_they_name_and_not_the_server(engine_server, caplog):
    serving = await engine_server(Spoiled(shorten))
    assert (await serving.generate(ask("bad", max_tokens=12))).failure.reason == pb.ERROR_REASON_INTERNAL
    assert "columns of a step must be of equal length" in caplog.text
    assert (await serving.generate(ask("good", max_tokens=12))).usage() == (5, 12)


async def test_without_the_full_check_positions_are_not_looked_at(engine_server):
    serving = await engine_server(Spoiled(row("positions", lambda position: position + 1)))
    answer = [item.output async for item in serving.engine.Generate(ask("bad", max_tokens=12))]
    assert answer[-1].finish_reason == pb.FINISH_REASON_LENGTH


REQUESTS = [
    {},
    {"sampling_options": pb.SamplingOptions(n=3)},
    {"output_options": pb.OutputOptions(logprobs=2)},
    {"resume": pb.Resume(attempt=1, choices=[pb.ResumedChoice(generated_token_ids=[1, 2])])},
    {"is_probe": True},
]


@pytest.mark.parametrize("fields", REQUESTS, ids=lambda fields: next(iter(fields), "plain"))
async def test_a_correct_engine_passes_the_full_check(engine_server, fields):
    serving = await engine_server(check_engine=True)
    answer = await serving.generate(ask(max_tokens=9, **fields))
    assert answer.failure is None


class Streaming(Good):
    """An engine that streams what it is given."""

    def __init__(self, *outputs: object) -> None:
        super().__init__()
        self.outputs = outputs

    async def start(self, worker_id: int) -> pb.EngineConfig:
        self.config = pb.EngineConfig(
            model="m", vocab_size=VOCAB, max_num_seqs=4, role=pb.ENGINE_ROLE_AGGREGATED
        )
        return self.config

    async def generate(self, request, context) -> AsyncIterator[pb.LLMEngineOutput]:
        for output in self.outputs:
            yield output
            await asyncio.sleep(0)


def token(position: int, **fields: object) -> pb.LLMEngineOutput:
    return pb.LLMEngineOutput(token_ids=[1], first_output_position=position, **fields)


@pytest.mark.parametrize(
    ("outputs", "sentence"),
    [
        ([token(0), token(0)], "first_output_position 0 of choice 0, expected 1"),
        ([token(0), "text"], "generate must yield LLMEngineOutput, got str"),
        ([token(0)], "the stream ended, but choice 0 had no output with a finish_reason"),
        ([token(0), pb.LLMEngineOutput(first_output_position=1)], "an output without token_ids"),
        ([token(0, index=7)], "choice 7, which has ended or was not asked for"),
        ([token(0, finish_reason=pb.FINISH_REASON_LENGTH)], "completion_usage.prompt_tokens is 0"),
        ([token(0), token(1), token(2), token(3)], "4 tokens, at most 3"),
    ],
)
async def test_a_mistake_in_an_iterator_is_explained(engine_server, caplog, outputs, sentence):
    serving = await engine_server(IteratorDriver(Streaming(*outputs)), check_engine=True)
    answer = await serving.generate(ask(max_tokens=3))
    assert answer.failure.reason == pb.ERROR_REASON_INTERNAL
    assert sentence in caplog.text
    assert answer.failure.metadata[ERROR_ID] in caplog.text
