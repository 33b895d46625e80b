"""The demo model in three processes: two that share the work say what the third says alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.stream import some
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.backend.replay.retry import RetryPolicy
from enginewire.server.demo_model import questions
from tests.end_to_end.processes import EngineProcess
from tests.patience import PATIENCE_SECONDS

FAQ = questions()
ASKED = list(FAQ)[::7][:12]
# Chunks far shorter than the prompts, and blocks of another size than the other engine's.
PREFILL = ("--max-num-seqs", "8", "--max-num-batched-tokens", "16", "--block-size", "8")
ROLES = {"aggregated": (), "prefill": PREFILL, "decode": ()}


class Trio:
    """Sockets of the three processes and the folder that two of them share."""

    def __init__(self, folder: Path) -> None:
        self.kv = folder / "kv"
        self.targets = {role: f"unix:{folder / role}.sock" for role in ROLES}

    @property
    def hand_offs(self) -> list[str]:
        """Files of unclaimed hand-offs."""
        return [name for name in os.listdir(self.kv) if not name.endswith(".lock")]


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    with tempfile.TemporaryDirectory(prefix="ew-") as name:
        trio = Trio(Path(name))
        command = [sys.executable, "-m", "enginewire.server", "builtin:demo", "--log-level", "error"]
        # Without it the last bits depend on what is cached, and now and then a token that is drawn on them.
        shared = ["--batch-invariant", "--kv-transfer-folder", str(trio.kv)]
        processes = [
            subprocess.Popen([*command, "--role", role, "--uds", target[5:], *shared, *ROLES[role]])
            for role, target in trio.targets.items()
        ]
        yield trio
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(PATIENCE_SECONDS) for process in processes] == [0, 0, 0]
        assert os.listdir(trio.kv) == []


@pytest.fixture
async def clients(trio: Trio) -> AsyncIterator[dict[str, EngineClient]]:
    """One per role. Whatever a test did, all engines are idle and no hand-off is left."""
    async with AsyncExitStack() as stack:
        found = {
            role: await stack.enter_async_context(EngineClient(target))
            for role, target in trio.targets.items()
        }
        await asyncio.gather(*(client.wait_ready(60) for client in found.values()))
        yield found
        for client in found.values():
            await until_idle(client)
        assert trio.hand_offs == []


async def until_idle(client: EngineClient) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        load = await client.load()
        if not (load.running or load.waiting or load.kv_blocks_used or load.pending_transfers):
            return
        assert time.monotonic() < deadline, f"not idle: {load}"
        await asyncio.sleep(0.02)


@pytest.fixture
async def backends(trio: Trio, clients: dict[str, EngineClient]) -> AsyncIterator[list[Backend]]:
    """One on two engines, multiplexed and not, and one on the engine that does everything."""
    tokenizer = await tokenizer_of(clients)
    async with AsyncExitStack() as stack:

        async def on(role: str, *, multiplexed: bool = True) -> Endpoints:
            client = EngineClient(trio.targets[role], multiplexed=multiplexed)
            return await stack.enter_async_context(Endpoints([client]))

        yield [
            Backend(
                await on("decode", multiplexed=multiplexed),
                tokenizer.vocabulary,
                retry=RetryPolicy(recovery=5.0),
                prefill=await on("prefill", multiplexed=multiplexed),
            )
            for multiplexed in (True, False)
        ] + [Backend(await on("aggregated"), tokenizer.vocabulary)]


async def tokenizer_of(clients: dict[str, EngineClient]) -> BackendTokenizer:
    return BackendTokenizer.from_files(await clients["aggregated"].tokenizer_files())


def question(tokenizer: BackendTokenizer, text: str, **sampling: object) -> pb.PreprocessedRequest:
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    return pb.PreprocessedRequest(
        token_ids=tokenizer.encode(prompt),
        stop_conditions=pb.StopConditions(max_tokens=60),
        sampling_options=pb.SamplingOptions(**{"temperature": 0, **sampling}),
    )


async def outputs_of(backend: Backend, request: pb.PreprocessedRequest) -> list[BackendOutput]:
    outputs = []
    async for item in backend.generate(request):
        assert item.error is None, item.error
        outputs += [item.data] if item.data else []
    return outputs


def final(outputs: list[BackendOutput]) -> tuple[object, ...]:
    """What must not depend on the engines or on how the outputs were cut."""
    choices = sorted({output.index for output in outputs})
    usage = outputs[-1].completion_usage
    assert usage is not None
    tokens = [[t for o in outputs if o.index == i for t in o.token_ids] for i in choices]
    texts = ["".join(o.text for o in outputs if o.index == i) for i in choices]
    ends = sorted((o.index, o.finish_reason) for o in outputs if o.is_terminal)
    return tokens, texts, ends, usage.prompt_tokens, usage.completion_tokens


async def test_every_answer_is_the_same_on_both_paths(clients, backends):
    tokenizer = await tokenizer_of(clients)
    requests = [question(tokenizer, text) for text in ASKED]
    answers = [
        [final(outputs) for outputs in await asyncio.gather(*(outputs_of(b, r) for r in requests))]
        for b in backends
    ]
    assert answers[0] == answers[1] == answers[2]
    assert [answer[1][0] for answer in answers[0]] == [
        FAQ[text][: len(answer[1][0])] for text, answer in zip(ASKED, answers[0], strict=True)
    ]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 8.0, "top_p": 0.95, "seed": 5, "n": 3},
        {"temperature": 0, "repetition_penalty": 1.6, "presence_penalty": 1.0},
        {"temperature": 5.0, "seed": 6, "best_of": 3},
        {"temperature": 4.0, "seed": 2, "guided_decoding": pb.GuidedDecoding(regex="[a-z ]{20,40}")},
    ],
    ids=["seeded", "penalised", "best-of", "guided"],
)
async def test_every_way_of_choosing_tokens_is_the_same(clients, backends, sampling):
    tokenizer = await tokenizer_of(clients)
    request = question(tokenizer, ASKED[3], **sampling)
    request.stop_conditions.max_tokens = 24
    request.output_options.logprobs = 2
    found = [await outputs_of(backend, request) for backend in backends]
    assert final(found[0]) == final(found[1]) == final(found[2])
    for outputs in found[:2]:
        logprobs = [p for o in outputs if o.logprobs for p in o.logprobs.token_logprobs]
        wanted = [p for o in found[2] if o.logprobs for p in o.logprobs.token_logprobs]
        assert sorted(logprobs) == sorted(wanted)


async def test_a_prefix_cached_by_the_prefill_engine_is_in_the_usage(clients, backends):
    tokenizer = await tokenizer_of(clients)
    request = question(tokenizer, ASKED[5] * 3)
    first, second = [await outputs_of(backends[0], request) for _ in range(2)]
    assert final(first) == final(second)
    usage = second[-1].completion_usage
    assert usage is not None
    cached = usage.prompt_tokens_details.cached_tokens
    assert 8 <= cached <= usage.prompt_tokens
    request.bypass_prefix_cache = True
    third = await outputs_of(backends[0], request)
    assert final(third) == final(first)
    assert third[-1].completion_usage.prompt_tokens_details.cached_tokens == 0


async def answer_of(client: EngineClient, request_id: str, request: pb.PreprocessedRequest) -> list[object]:
    stream = await client.submit(pb.GenerateRequest(request_id=request_id, request=request))
    found = []
    while not stream.ended:
        found += some(await stream.read())
    return found


async def test_a_hand_off_is_refused_the_second_time_and_after_an_abort(clients, trio):
    tokenizer = await tokenizer_of(clients)
    request = question(tokenizer, ASKED[1])
    halves = []
    for name in ("used", "freed"):
        (answer,) = await answer_of(clients["prefill"], name, request)
        half = pb.PreprocessedRequest()
        half.CopyFrom(request)
        half.prefill_result.handoff.CopyFrom(answer.output.prefill_handoff)
        halves.append(half)
    assert (await clients["prefill"].load()).pending_transfers == len(trio.hand_offs) == 2
    assert await answer_of(clients["decode"], "first", halves[0])
    await clients["prefill"].abort(["freed"], "test")
    for half in halves:
        with pytest.raises(RequestFailed) as failure:
            await answer_of(clients["decode"], "second", half)
        assert failure.value.reason == pb.ERROR_REASON_HANDOFF_INVALID


async def test_callers_that_leave_at_any_time_leave_nothing(clients, backends):
    tokenizer = await tokenizer_of(clients)
    requests = [question(tokenizer, text * 4) for text in ASKED]

    async def leave_after(seconds: float, request: pb.PreprocessedRequest) -> None:
        async def listen() -> None:
            async with aclosing(backends[0].generate(request)) as items:
                async for item in items:
                    assert item.error is None

        listening = asyncio.create_task(listen())
        await asyncio.sleep(seconds)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    await asyncio.gather(*(leave_after(0.02 * i, request) for i, request in enumerate(requests)))


def test_a_killed_prefill_engine_leaves_files_that_the_next_one_sweeps(launch, folder):
    kv = folder / "kv"
    options = ("--role", "prefill", "--kv-transfer-folder", str(kv))
    killed: EngineProcess = launch(*options, "--uds", str(folder / "a.sock"))
    target = killed.target()

    async def prefill() -> None:
        async with EngineClient(target) as client:
            await answer_of(client, "r", pb.PreprocessedRequest(token_ids=[1, 2, 3]))

    asyncio.run(prefill())
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    assert len(os.listdir(kv)) == 2, "its lock and its hand-off"
    next_one: EngineProcess = launch(*options, "--uds", str(folder / "b.sock"))
    next_one.target()
    assert len(os.listdir(kv)) == 1, "the lock of the living one"
    next_one.signal(signal.SIGTERM)
    assert next_one.exit_code() == 0
    assert os.listdir(kv) == []


def test_a_folder_that_others_can_enter_ends_the_start(launch, folder):
    (folder / "kv").mkdir()
    (folder / "kv").chmod(0o755)
    process: EngineProcess = launch("--role", "decode", "--kv-transfer-folder", str(folder / "kv"))
    assert process.exit_code() == 1
    assert any("--kv-transfer-folder" in event and "0700" in event for event in process.events())
