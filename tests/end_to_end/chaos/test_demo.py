"""The real model is killed in the middle of its answers: arithmetic, penalties and stop strings go on."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.server.demo_model import questions
from tests.backend.asking import Heard, hear
from tests.end_to_end.chaos.stage import (
    answer_of,
    engines,
    hear_slowly,
    kinds_of_requests,
    migrations,
    replaying,
)
from tests.long import long
from tests.server.serving import until_true

DEMO = ("builtin:demo",)
PENALTIES = {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.1}


SENTENCES = ["the quick brown fox jumps over the lazy dog", "the five boxing wizards jump quickly today"]
SCHEMA = json.dumps({"type": "object", "properties": {"said": {"enum": SENTENCES}}, "required": ["said"]})
GUIDED_BY = ("xgrammar", "llguidance")


async def tokenizer_of(target: str) -> BackendTokenizer:
    async with EngineClient(target) as client:
        await client.wait_ready(60)
        return BackendTokenizer.from_files(await client.tokenizer_files())


def requests(tokenizer: BackendTokenizer) -> list[pb.PreprocessedRequest]:
    """Those of every kind, then two for each library of grammars: one for each engine."""
    question = next(iter(questions()))
    prompt = tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": question}]))
    made = list(kinds_of_requests(prompt, 200, **PENALTIES))
    for request in made:
        # Found in the text of the undisturbed answer, or never: both must stay as they are.
        request.stop_conditions.stop.append("qzx")
    return made + [following(SCHEMA, library, seed) for library in GUIDED_BY for seed in (3, 4)]


@long
async def test_the_real_model_goes_on_where_it_was_killed(folder: Path) -> None:
    async with engines(folder, 2, DEMO) as slots:
        tokenizer = await tokenizer_of(slots[0].target)
        async with replaying([slot.target for slot in slots], tokenizer.vocabulary) as backend:
            await backend.engines.all[1].client.wait_ready(60)
            asked = requests(tokenizer)
            truth = await asyncio.gather(*(hear(backend, request) for request in asked))
            all_heard = [Heard() for _ in asked]
            tasks = [
                asyncio.create_task(hear_slowly(backend, request, heard))
                for request, heard in zip(asked, all_heard, strict=True)
            ]
            guided = {library: all_heard[-4 + 2 * at :][:2] for at, library in enumerate(GUIDED_BY)}
            await until_true(lambda: all(len(heard.outputs) >= 2 for heard in all_heard))
            busy = [endpoint.in_flight for endpoint in backend.engines.all]
            await slots[busy.index(max(busy))].end(signal.SIGKILL)
            await asyncio.gather(*tasks)
    for heard, true in zip(all_heard, truth, strict=True):
        check_same(heard, true)
    assert any(migrations(heard) for heard in all_heard[:-4])
    for library, some in guided.items():
        assert any(migrations(heard) for heard in some), library
        assert all('"said"' in heard.text(0) for heard in some)


def following(schema: str, backend: str, seed: int) -> pb.PreprocessedRequest:
    sampling = pb.SamplingOptions(temperature=0.2, seed=seed)
    sampling.guided_decoding.json_schema = schema
    sampling.guided_decoding.backend = backend
    stop = pb.StopConditions(max_tokens=250)
    return pb.PreprocessedRequest(token_ids=[6, 7, 8], sampling_options=sampling, stop_conditions=stop)


def check_same(heard: Heard, true: Heard) -> None:
    """The same tokens; log-probabilities as near as sums in another order come."""
    told, expected = answer_of(heard), answer_of(true)
    for index, (*answer, log_probs, total) in expected.items():
        *found, found_log_probs, found_total = told[index]
        assert found == answer
        assert found_log_probs == pytest.approx(log_probs, abs=1e-3)
        assert found_total == pytest.approx(total, abs=1e-2)
