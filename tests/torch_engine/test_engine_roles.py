"""The torch engine in the roles prefill and decode: what happens while files are written and read."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from enginewire import v1 as pb
from enginewire.server.engines.interface import AdapterSource, GenerateContext
from enginewire.server.failures import (
    DeadlineExceeded,
    HandoffInvalid,
    KvExhausted,
    QueueFull,
    StepFailed,
    Unsupported,
)
from enginewire.server.handoff.folder import FoundHandoff, KvFolder
from enginewire.server.handoff.options import TransferOptions
from enginewire.server.validation.generate import check_generate
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.frontend.capabilities import engine_config
from enginewire.torch_engine.options import TorchEngineOptions
from tests.patience import PATIENCE_SECONDS
from tests.server.step_recorder import Answer, Recorder
from tests.torch_engine.lora.folders import make_adapter
from tests.torch_engine.tiny import greedy

PROMPT = list(range(5, 42))
TOKEN_BYTES = 3 * 2 * 2 * 8 * 4
"""Three layers, keys and values, two heads of eight, in float32."""
Start = Callable[..., Awaitable[TorchEngine]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kv").mkdir(mode=0o700)
    return tmp_path / "kv"


@pytest_asyncio.fixture
async def start(model_folder, folder: Path) -> AsyncIterator[Start]:
    """`await start(role)` is a started engine. At the end nothing is left in the folder."""
    engines: list[TorchEngine] = []

    async def make(
        role: str, max_loras: int = 0, kv_cache_dtype: str = "auto", **transfer: float
    ) -> TorchEngine:
        engines.append(
            TorchEngine(
                TorchEngineOptions(
                    model=str(model_folder("llama")),
                    device="cpu",
                    dtype="float32",
                    kv_cache_dtype=kv_cache_dtype,
                    max_num_seqs=4,
                    num_threads=1,
                    role=role,
                    max_loras=max_loras,
                    transfer=None if role == "aggregated" else TransferOptions(folder, **transfer),
                )
            )
        )
        await engines[-1].start(1)
        return engines[-1]

    yield make
    for engine in engines:
        await engine.cleanup()
    assert os.listdir(folder) == []


def hand_offs(folder: Path) -> list[Path]:
    return list(folder.glob("*.kv"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  # there is no event to await
            await asyncio.sleep(0.005)


async def ended(answer: Answer) -> Answer:
    await until(lambda: bool(answer.failure) or any(choice.terminal for choice in answer.choices.values()))
    return answer


async def handed_over(engine: TorchEngine, request: pb.PreprocessedRequest) -> pb.PreprocessedRequest:
    """The second half of a request, after its first half."""
    outputs = [output async for output in engine.generate(request, GenerateContext("p"))]
    half = pb.PreprocessedRequest()
    half.CopyFrom(request)
    half.prefill_result.handoff.CopyFrom(outputs[-1].prefill_handoff)
    assert len(outputs) == 1
    return half


class Gate:
    """Holds up a method until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        original = getattr(owner, name)

        def gated(*arguments: object) -> object:
            self.reached.set()
            assert self.opened.wait(PATIENCE_SECONDS)
            return original(*arguments)

        monkeypatch.setattr(owner, name, gated)


async def test_two_engines_give_the_answer_of_one_with_several_choices(start, folder):
    prefill, decode = await start("prefill"), await start("decode")
    request = greedy(PROMPT, 9, n=2)
    half = await handed_over(prefill, request)
    assert prefill.load().pending_transfers == len(hand_offs(folder)) == 1
    outputs = [output async for output in decode.generate(half, GenerateContext("d"))]
    await until(lambda: prefill.load().pending_transfers == 0)
    probe = greedy(PROMPT, 9)
    probe.is_probe = True
    whole = [output async for output in decode.generate(probe, GenerateContext("w"))]
    tokens = [[t for out in outputs if out.index == i for t in out.token_ids] for i in range(2)]
    assert tokens == [[t for out in whole for t in out.token_ids]] * 2


async def test_keys_and_values_of_another_adapter_of_that_name_are_refused(start, model_folder, tmp_path):
    folders = [make_adapter(model_folder("llama"), tmp_path / f"{seed}", seed) for seed in (3, 4)]
    one, two = (AdapterSource("a", folder.name, folder, f"digest of {folder.name}") for folder in folders)
    prefill, decode = [await start(role, max_loras=1) for role in ("prefill", "decode")]
    await prefill.load_adapter(one)
    await decode.load_adapter(two)
    request = greedy(PROMPT, 4)
    request.routing.lora_name = "a"
    half = await handed_over(prefill, request)
    with pytest.raises(HandoffInvalid, match="adapter"):
        decode.submit(half, GenerateContext("d"))
    await decode.unload_adapter("a")
    await decode.load_adapter(one)
    outputs = [output async for output in decode.generate(half, GenerateContext("d"))]
    assert sum(len(output.token_ids) for output in outputs) == 4


WHOLE_ONLY = {
    "sampling_options.use_beam_search": pb.PreprocessedRequest(
        token_ids=PROMPT, sampling_options=pb.SamplingOptions(use_beam_search=True, n=2)
    ),
    "output_options.prompt_logprobs": pb.PreprocessedRequest(
        token_ids=PROMPT, output_options=pb.OutputOptions(prompt_logprobs=1)
    ),
    "prompt_embeds": pb.PreprocessedRequest(
        prompt_embeds=pb.Tensor(data_type=pb.DATA_TYPE_FLOAT32, shape=[1, 32], data=bytes(128))
    ),
}


@pytest.mark.parametrize("role", ["aggregated", "prefill", "decode"])
async def test_only_one_engine_for_all_of_it_takes_what_needs_the_whole_request(start, role):
    engine = await start(role)
    config = engine_config(engine._options, await engine._thread.loaded, engine._reader._limits)
    refused = []
    for request in WHOLE_ONLY.values():
        half = pb.GenerateRequest(request_id="r", request=request)
        if role == "decode":
            half.request.prefill_result.handoff.params = b"any"
        try:
            check_generate(half, config)
        except Unsupported as refusal:
            refused.append(refusal.field)
    assert refused == ([] if role == "aggregated" else list(WHOLE_ONLY))


async def test_a_request_cancelled_while_its_hand_off_is_written_ends_as_cancelled(
    start, folder, monkeypatch
):
    prefill = await start("prefill")
    recorder = Recorder(prefill)
    gate = Gate(monkeypatch, KvFolder, "write")
    context, answer = recorder.submit(greedy(PROMPT, 4))
    await until(gate.reached.is_set)
    assert prefill.load().pending_transfers == 1
    assert prefill.load().kv_blocks_used == 0
    context.cancel("test")
    await prefill.abort(context)
    gate.opened.set()
    choice = (await ended(answer)).choices[0]
    assert choice.reason == "CANCELLED"
    assert not choice.outputs[-1].HasField("prefill_handoff")
    assert (prefill.load().pending_transfers, hand_offs(folder)) == (0, [])


async def test_a_deadline_that_passes_while_the_hand_off_is_written_is_a_failure(start, folder, monkeypatch):
    prefill = await start("prefill")
    recorder = Recorder(prefill)
    gate = Gate(monkeypatch, KvFolder, "write")
    deadline = time.monotonic() + 3.0
    _, answer = recorder.submit(greedy(PROMPT, 4), deadline=deadline)
    await until(gate.reached.is_set)
    await asyncio.sleep(deadline - time.monotonic())
    gate.opened.set()
    assert isinstance((await ended(answer)).failure, DeadlineExceeded)
    assert (prefill.load().pending_transfers, hand_offs(folder)) == (0, [])


async def test_a_hand_off_that_cannot_be_written_fails_its_request(start, folder, monkeypatch):
    prefill = await start("prefill")
    recorder = Recorder(prefill)

    def full(*arguments: object) -> bytes:
        raise OSError(28, "No space left on device", str(folder))

    with monkeypatch.context() as patched:
        patched.setattr(KvFolder, "write", full)
        _, answer = recorder.submit(greedy(PROMPT, 4))
        failure = (await ended(answer)).failure
    assert isinstance(failure, StepFailed)
    assert str(folder) not in str(failure)
    assert prefill.load().pending_transfers == 0
    assert (await handed_over(prefill, greedy(PROMPT, 4))).prefill_result.handoff.params


async def test_hand_offs_that_nobody_claims_are_bounded(start):
    prefill = await start("prefill", max_bytes=60 * TOKEN_BYTES)
    await handed_over(prefill, greedy(PROMPT, 4))
    with pytest.raises(QueueFull):
        prefill.submit(greedy(PROMPT, 4), GenerateContext("next"))
    with pytest.raises(KvExhausted):
        prefill.submit(greedy([7] * 62, 4), GenerateContext("long"))
    prefill.discard_handoff("p")
    await handed_over(prefill, greedy(PROMPT, 4))


async def test_numbers_of_another_type_are_refused_with_the_option_that_says_it(start):
    prefill, decode = await start("prefill", kv_cache_dtype="bfloat16"), await start("decode")
    half = await handed_over(prefill, greedy(PROMPT, 4))
    with pytest.raises(HandoffInvalid, match="another dtype, kv_cache_dtype or quantization"):
        decode.submit(half, GenerateContext("d"))
    same = await start("decode", kv_cache_dtype="bfloat16")
    _, answer = Recorder(same).submit(half)
    assert (await ended(answer)).failure is None


async def test_damaged_keys_and_values_fail_the_request_and_leave_nothing(start, folder):
    prefill, decode = await start("prefill"), await start("decode", max_bytes=40 * TOKEN_BYTES)
    recorder = Recorder(decode)
    for _ in range(3):
        half = await handed_over(prefill, greedy(PROMPT, 4))
        (file,) = hand_offs(folder)
        file.write_bytes(file.read_bytes()[:-4] + b"\x00\x00\xc0\x7f")
        _, answer = recorder.submit(half)
        assert isinstance((await ended(answer)).failure, HandoffInvalid)
        await until(lambda: decode.load().waiting == 0)
    assert decode.load().kv_blocks_used == 0
    _, answer = recorder.submit(await handed_over(prefill, greedy(PROMPT, 4)))
    assert (await ended(answer)).failure is None


async def test_a_request_cancelled_while_its_hand_off_is_read_ends_as_cancelled(start, monkeypatch):
    prefill, decode = await start("prefill"), await start("decode", max_bytes=40 * TOKEN_BYTES)
    recorder = Recorder(decode)
    half = await handed_over(prefill, greedy(PROMPT, 4))
    gate = Gate(monkeypatch, FoundHandoff, "read")
    context, answer = recorder.submit(half)
    assert decode.load().waiting == 1
    context.cancel("test")
    await decode.abort(context)
    gate.opened.set()
    assert (await ended(answer)).choices[0].reason == "CANCELLED"
    _, answer = recorder.submit(await handed_over(prefill, greedy(PROMPT, 4)))
    assert (await ended(answer)).choices[0].reason == "LENGTH", "the memory of the first was given back"


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_cleanup_while_files_are_under_way_ends_the_request(start, monkeypatch, role):
    prefill, decode = await start("prefill"), await start("decode")
    half = await handed_over(prefill, greedy(PROMPT, 4))
    engine, request = (prefill, greedy(PROMPT, 4)) if role == "prefill" else (decode, half)
    gate = Gate(monkeypatch, *((KvFolder, "write") if role == "prefill" else (FoundHandoff, "read")))
    recorder = Recorder(engine)
    context, answer = recorder.submit(request)
    await until(gate.reached.is_set)
    context.cancel("cleanup")
    cleaning = asyncio.create_task(engine.cleanup())
    await asyncio.sleep(0.05)
    gate.opened.set()
    await cleaning
    assert (await ended(answer)).choices[0].reason == "CANCELLED"


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_rendezvous_is_refused(start, role):
    engine = await start(role)
    request = greedy(PROMPT, 4)
    request.bootstrap_info.bootstrap_host = "h"
    with pytest.raises(Unsupported) as refusal:
        engine.submit(request, GenerateContext("r"))
    assert refusal.value.field == "bootstrap_info"


def test_a_role_needs_a_folder_and_no_role_has_none(tmp_path):
    with pytest.raises(ValueError, match="transfer"):
        TorchEngineOptions(role="decode")
    with pytest.raises(ValueError, match="transfer"):
        TorchEngineOptions(transfer=TransferOptions(tmp_path))
