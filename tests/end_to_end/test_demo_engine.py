"""The real thing: the torch engine in its own process, answering through the backend, and its leaks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.server.demo_model import questions
from tests.patience import PATIENCE_SECONDS

FAQ = questions()
# Every seventh, so that emoji and Japanese are among them.
ASKED = list(FAQ)[::7][:64]


@pytest.fixture
async def client(demo_target: str) -> AsyncIterator[EngineClient]:
    async with EngineClient(demo_target) as client:
        await client.wait_ready(60)
        yield client
        await wait_idle(client)


async def wait_idle(client: EngineClient) -> None:
    """Every test ends with an idle engine and all of its blocks free."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        load = await client.load()
        if not (load.running or load.waiting or load.kv_blocks_used):
            return
        assert time.monotonic() < deadline, f"not idle: {load}"
        await asyncio.sleep(0.02)


async def tokenizer_of(client: EngineClient) -> BackendTokenizer:
    return BackendTokenizer.from_files(await client.tokenizer_files())


def question(tokenizer: BackendTokenizer, text: str, **stop: object) -> pb.PreprocessedRequest:
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    return pb.PreprocessedRequest(
        token_ids=tokenizer.encode(prompt),
        stop_conditions=pb.StopConditions(max_tokens=200, **stop),
        sampling_options=pb.SamplingOptions(temperature=0),
    )


async def outputs_of(backend: Backend, request: pb.PreprocessedRequest) -> list[BackendOutput]:
    outputs = []
    async for item in backend.generate(request):
        assert item.error is None, item.error
        assert item.data is not None
        outputs.append(item.data)
    return outputs


def text_of(outputs: list[BackendOutput]) -> str:
    return "".join(output.text for output in outputs)


async def test_64_questions_at_once_get_their_answers_on_both_paths(
    demo_target: str, client: EngineClient
) -> None:
    tokenizer = await tokenizer_of(client)
    async with EngineClient(demo_target, multiplexed=False) as plain:
        answers = []
        for path in (client, plain):
            backend = Backend(path, tokenizer.vocabulary)
            requests = [question(tokenizer, text) for text in ASKED]
            answers.append(await asyncio.gather(*(outputs_of(backend, request) for request in requests)))
    assert [text_of(outputs) for outputs in answers[0]] == [FAQ[text] for text in ASKED]
    assert [final(outputs) for outputs in answers[0]] == [final(outputs) for outputs in answers[1]]


def final(outputs: list[BackendOutput]) -> tuple[list[int], str, int, str]:
    """What must not depend on how the outputs were cut into messages."""
    token_ids = [token_id for output in outputs for token_id in output.token_ids]
    return token_ids, text_of(outputs), outputs[-1].finish_reason, str(outputs[-1].completion_usage)


async def test_a_seeded_request_is_the_same_alone_and_in_a_crowd(client: EngineClient) -> None:
    tokenizer = await tokenizer_of(client)
    backend = Backend(client, tokenizer.vocabulary)

    def seeded(seed: int) -> pb.PreprocessedRequest:
        request = question(tokenizer, ASKED[seed % 5], ignore_eos=True)
        request.stop_conditions.max_tokens = 24
        # Hot enough that even a model this sure of its answers is not.
        request.sampling_options.MergeFrom(pb.SamplingOptions(temperature=8, top_p=0.95, seed=seed, n=2))
        return request

    alone = [final_by_choice(await outputs_of(backend, seeded(seed))) for seed in range(4)]
    crowd = await asyncio.gather(*(outputs_of(backend, seeded(seed)) for seed in range(12)))
    assert [final_by_choice(outputs) for outputs in crowd[:4]] == alone
    assert alone[0][0] != alone[0][1], "choices draw different numbers"


def final_by_choice(outputs: list[BackendOutput]) -> list[list[int]]:
    return [
        [token_id for output in outputs if output.index == index for token_id in output.token_ids]
        for index in range(2)
    ]


async def test_a_stop_string_ends_the_request_in_the_engine_too(client: EngineClient) -> None:
    tokenizer = await tokenizer_of(client)
    backend = Backend(client, tokenizer.vocabulary)
    answer = FAQ[ASKED[0]]
    stop = answer[len(answer) // 2 :][:6]
    request = question(tokenizer, ASKED[0], ignore_eos=True, stop=[stop])
    request.stop_conditions.max_tokens = 900
    outputs = await outputs_of(backend, request)
    assert text_of(outputs) == answer[: answer.index(stop)]
    assert outputs[-1].stop_reason == stop
    await wait_idle(client)


async def test_a_closed_generator_frees_the_request(client: EngineClient) -> None:
    tokenizer = await tokenizer_of(client)
    request = question(tokenizer, ASKED[1], ignore_eos=True)
    request.stop_conditions.max_tokens = 900
    stream = Backend(client, tokenizer.vocabulary).generate(request)
    await anext(stream)
    assert (await client.load()).running == 1
    await stream.aclose()
    await wait_idle(client)


async def test_a_deadline_ends_the_request_and_frees_it(client: EngineClient) -> None:
    tokenizer = await tokenizer_of(client)
    request = question(tokenizer, ASKED[1], ignore_eos=True)
    request.stop_conditions.max_tokens = 900
    backend = Backend(client, tokenizer.vocabulary)
    items = [item async for item in backend.generate(request, timeout=0.3)]
    assert items[-1].error is not None
    assert items[-1].error.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED
    await wait_idle(client)


CLIENT_THAT_NEVER_ENDS = """
import asyncio, sys
from enginewire.backend.engines.connection.client import EngineClient
from enginewire import v1 as pb

async def main() -> None:
    async with EngineClient(sys.argv[1]) as client:
        stop = pb.StopConditions(max_tokens=900, ignore_eos=True)
        request = pb.PreprocessedRequest(token_ids=[5, 6, 7], stop_conditions=stop)
        streams = [
            await client.submit(pb.GenerateRequest(request_id=f"orphan-{n}", request=request))
            for n in range(8)
        ]
        await streams[0].read()
        print("running", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_killed_client_leaves_nothing_behind(demo_target: str, client: EngineClient) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CLIENT_THAT_NEVER_ENDS,
        demo_target,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path.cwd(),
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"running\n"
    assert (await client.load()).running > 0
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await wait_idle(client)
