"""A backend whose prompts and answers are computed by different engines."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.stream import Chunk, EngineStream, Take
from enginewire.backend.replay.prefill import prompt_part, result_of
from enginewire.backend.replay.retry import RetryPolicy
from tests.backend.asking import ask, hear
from tests.backend.our_processes import run
from tests.server.serving import Serving, ask as ask_engine, seconds

PROMPT = b"abcdefgh"


@asynccontextmanager
async def backend_of(
    vocabulary,
    targets: list[Serving],
    prefill: list[Serving],
    *,
    multiplexed: bool = True,
    policy: RetryPolicy | None = RetryPolicy(recovery=2.0),  # noqa: B008  # a frozen value
):
    async with AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(
                Endpoints([EngineClient(s.server.target, multiplexed=multiplexed) for s in group])
            )
            for group in (targets, prefill)
        ]
        yield Backend(both[0], vocabulary, retry=policy, prefill=both[1])


def hand_offs(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder / "kv") if not name.endswith(".lock")]


async def claimed(*all_prefill: Serving) -> None:
    for prefill in all_prefill:
        await prefill.until(lambda load: load.pending_transfers == 0)


@pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])
async def test_the_answer_and_its_usage_are_those_of_one_engine(
    role_server, vocabulary, socket_folder, multiplexed
):
    whole, prefill, decode = [await role_server(role) for role in ("aggregated", "prefill", "decode")]
    request = ask(PROMPT, 30, sampling_options=pb.SamplingOptions(n=3, temperature=1.5, seed=9))
    request.stop_conditions.stop.append("zzz")
    async with backend_of(vocabulary, [decode], [prefill], multiplexed=multiplexed) as backend:
        found = await asyncio.gather(*(hear(backend, request) for _ in range(20)))
    async with backend_of(vocabulary, [whole], []) as backend:
        wanted = await hear(backend, request)
    for heard in found:
        assert heard.failure is None
        assert [heard.text(i) for i in range(3)] == [wanted.text(i) for i in range(3)]
        assert heard.usage() == wanted.usage()
    assert (await prefill.load()).requests_finished == 20
    await claimed(prefill)
    assert hand_offs(socket_folder) == []


async def test_an_aggregated_target_needs_no_other_engine(role_server, vocabulary):
    whole, prefill = await role_server("aggregated"), await role_server("prefill")
    async with backend_of(vocabulary, [whole], [prefill]) as backend:
        assert (await hear(backend, ask(PROMPT))).failure is None
    assert (await prefill.load()).requests_finished == 0


async def test_a_probe_goes_to_the_target_alone(role_server, vocabulary):
    prefill, decode = await role_server("prefill"), await role_server("decode")
    async with backend_of(vocabulary, [decode], [prefill]) as backend:
        heard = await hear(backend, pb.PreprocessedRequest(token_ids=PROMPT, is_probe=True))
    assert (heard.failure, len(heard.token_ids())) == (None, 1)
    assert (await prefill.load()).step == 0


async def test_a_prefill_target_of_another_role_is_a_typed_error(role_server, vocabulary):
    whole, decode = await role_server("aggregated"), await role_server("decode")
    async with backend_of(vocabulary, [decode], [whole]) as backend:
        failure = (await hear(backend, ask(PROMPT))).failure
    assert failure is not None
    assert (failure.code, failure.reason) == (9, pb.ERROR_REASON_ROLE_MISMATCH)


async def test_engines_that_share_no_folder_are_a_typed_error_and_leave_nothing(
    role_server, engine_server, vocabulary, tmp_path
):
    prefill = await role_server("prefill")
    decode = await engine_server(role="decode", kv_transfer_folder=tmp_path / "other")
    async with backend_of(vocabulary, [decode], [prefill]) as backend:
        failure = (await hear(backend, ask(PROMPT))).failure
        assert failure is not None
        assert (failure.code, failure.reason) == (9, pb.ERROR_REASON_HANDOFF_INVALID)
        await claimed(prefill)
    assert (await prefill.load()).requests_finished == 2, "a hand-off that is gone is renewed once"


async def test_without_a_prefill_engine_the_request_fails_in_time(role_server, vocabulary):
    prefill, decode = await role_server("prefill", is_started=False), await role_server("decode")
    async with backend_of(vocabulary, [decode], [prefill], policy=RetryPolicy(recovery=0.1)) as backend:
        failure = (await hear(backend, ask(PROMPT))).failure
    assert failure is not None
    assert (failure.reason, failure.retryable) == (pb.ERROR_REASON_NOT_STARTED, True)


async def test_a_prefill_engine_that_refuses_is_left_for_another(role_server, vocabulary):
    refuses = await role_server("prefill", max_num_queued_tokens=1, max_num_seqs=1, mocker_ttft_ms=60_000.0)
    other, decode = await role_server("prefill"), await role_server("decode")
    blocks = asyncio.create_task(refuses.generate(ask_engine("blocks")))
    await refuses.until(lambda load: load.running == 1)
    async with backend_of(vocabulary, [decode], [refuses, other]) as backend:
        found = await asyncio.gather(*(hear(backend, ask(PROMPT)) for _ in range(4)))
    assert [heard.failure for heard in found] == [None] * 4
    await refuses.engine.Abort(pb.AbortRequest(all=True))
    await blocks


async def test_a_prefill_engine_that_shuts_down_hands_its_requests_to_another(role_server, vocabulary):
    leaves = await role_server("prefill", mocker_ttft_ms=60_000.0)
    other, decode = await role_server("prefill"), await role_server("decode")
    async with backend_of(vocabulary, [decode], [leaves, other]) as backend:
        asking = [asyncio.create_task(hear(backend, ask(PROMPT))) for _ in range(2)]
        await leaves.until(lambda load: load.running > 0)
        async for _ in leaves.engine.Drain(pb.DrainRequest(deadline=seconds(0.2))):
            pass
        found = await asyncio.gather(*asking)
    assert [heard.failure for heard in found] == [None] * 2


async def test_a_caller_that_leaves_during_the_prefill_ends_it(role_server, vocabulary, socket_folder):
    prefill, decode = await role_server("prefill", mocker_ttft_ms=60_000.0), await role_server("decode")
    async with backend_of(vocabulary, [decode], [prefill]) as backend:
        asking = asyncio.create_task(hear(backend, ask(PROMPT)))
        await prefill.until(lambda load: load.running == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await prefill.until_idle()
    assert (await prefill.load()).pending_transfers == 0
    assert hand_offs(socket_folder) == []


async def test_a_caller_that_leaves_while_the_hand_off_is_on_its_way_frees_it(
    role_server, vocabulary, socket_folder, monkeypatch
):
    async def never(stream: EngineStream, take: Take | None = None) -> list[Chunk]:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(EngineStream, "read", never)
    prefill, decode = await role_server("prefill"), await role_server("decode")
    async with backend_of(vocabulary, [decode], [prefill]) as backend:
        asking = asyncio.create_task(hear(backend, ask(PROMPT)))
        await prefill.until(lambda load: load.pending_transfers == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert (await prefill.load()).pending_transfers == 0, "leaving does not end before the abort has"
    assert hand_offs(socket_folder) == []


@asynccontextmanager
async def busy(serving: Serving, prefill: Serving):
    """A decode engine that refuses everything while the block runs."""
    request = ask_engine("busy", max_tokens=4000)
    request.request.prefill_result.handoff.CopyFrom(
        (await prefill.generate(ask_engine("busy"))).outputs[-1].prefill_handoff
    )
    running = asyncio.create_task(serving.generate(request))
    await serving.until(lambda load: load.running == 1)
    yield
    await serving.engine.Abort(pb.AbortRequest(request_ids=["busy"]))
    await running


FULL = {"max_num_seqs": 1, "max_num_queued_tokens": 1, "mocker_itl_ms": 20.0}


async def test_a_hand_off_is_kept_while_the_decode_engine_only_refuses(role_server, vocabulary):
    prefill, decode = await role_server("prefill"), await role_server("decode", **FULL)
    async with backend_of(vocabulary, [decode], [prefill]) as backend:
        async with busy(decode, prefill):
            asking = asyncio.create_task(hear(backend, ask(PROMPT)))
            await prefill.until(lambda load: load.requests_finished == 2)
            await asyncio.sleep(0.05)
        assert (await asking).failure is None
    assert (await prefill.load()).requests_finished == 2, "the prompt was computed once"


async def test_a_caller_that_leaves_between_the_halves_frees_the_hand_off(
    role_server, vocabulary, socket_folder
):
    prefill, decode = await role_server("prefill"), await role_server("decode", **FULL)
    async with backend_of(vocabulary, [decode], [prefill]) as backend:
        async with busy(decode, prefill):
            asking = asyncio.create_task(hear(backend, ask(PROMPT)))
            await prefill.until(lambda load: load.requests_finished == 2 and load.pending_transfers == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await claimed(prefill)
        assert hand_offs(socket_folder) == []


async def test_a_hand_off_that_expired_in_the_queue_is_made_again(role_server, vocabulary):
    prefill, decode = await role_server("prefill", kv_transfer_ttl=1.0), await role_server("decode", **FULL)
    patient = await role_server("prefill")
    async with backend_of(vocabulary, [decode], [prefill]) as backend:
        async with busy(decode, patient):
            asking = asyncio.create_task(hear(backend, ask(PROMPT)))
            await prefill.until(lambda load: load.requests_finished == 1)
            await claimed(prefill)
        assert (await asking).failure is None
    assert (await prefill.load()).requests_finished == 2


async def test_a_prompt_that_an_unheard_drain_has_cancelled_is_computed_elsewhere(
    role_server, vocabulary, monkeypatch
):
    leaves = await role_server("prefill", mocker_ttft_ms=60_000.0)
    stays, decode = await role_server("prefill"), await role_server("decode")
    # Its watched load never says that it drains.
    monkeypatch.setattr(Endpoint, "heard", lambda endpoint, load: None)
    async with backend_of(vocabulary, [decode], [leaves, stays]) as backend:
        asking = asyncio.create_task(hear(backend, ask(PROMPT)))
        await leaves.until(lambda load: load.running == 1)
        async for _ in leaves.engine.Drain(pb.DrainRequest(deadline=seconds(0.05))):
            pass
        assert (await asking).failure is None
    assert (await stays.load()).requests_finished == 1


async def test_an_answer_goes_on_elsewhere_after_the_prompt_was_computed_again(role_server, vocabulary):
    prefill, leaves = await role_server("prefill"), await role_server("decode", mocker_itl_ms=5.0)
    whole = await role_server("aggregated")
    request = ask(PROMPT, 200, sampling_options=pb.SamplingOptions(temperature=1.5, seed=3))
    request.stop_conditions.ignore_eos = True
    stays = await role_server("decode", mocker_itl_ms=5.0)
    async with backend_of(vocabulary, [leaves, stays], [prefill]) as backend:
        heard_some = asyncio.Event()
        events: list[str] = []

        async def listen() -> str:
            text = ""
            async with aclosing(backend.generate(request)) as items:
                async for item in items:
                    assert item.error is None
                    text += item.data.text if item.data else ""
                    events.extend([item.event] if item.event else [])
                    if text:
                        heard_some.set()
            return text

        listening = asyncio.create_task(listen())
        await heard_some.wait()
        runs = leaves if (await leaves.load()).running else stays
        async for _ in runs.engine.Drain(pb.DrainRequest(deadline=seconds(0.2))):
            pass
        text = await listening
    async with backend_of(vocabulary, [whole], []) as backend:
        wanted = await hear(backend, request)
    assert text == wanted.text()
    assert events == ["migrated"]
    assert (await prefill.load()).requests_finished == 2


async def test_the_command_takes_targets_of_both_kinds(role_server):
    prefill, decode = await role_server("prefill"), await role_server("decode")
    targets = ("--target", decode.server.target, "--prefill-target", prefill.server.target)
    arguments = ("generate", *targets, "--no-chat", "--max-tokens", "5", "--ignore-eos", "hello")
    done = await asyncio.to_thread(run, *arguments)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert (await prefill.load()).requests_finished == 1
    await claimed(prefill)


def test_the_prompt_is_asked_for_once_and_from_its_beginning():
    request = ask(PROMPT, sampling_options=pb.SamplingOptions(n=4, best_of=5, seed=2), cache_salt="s")
    request.resume.choices.add(index=1, generated_token_ids=[1])
    part = prompt_part(request)
    assert part == ask(PROMPT, sampling_options=pb.SamplingOptions(seed=2), cache_salt="s")
    assert len(request.resume.choices) == 1


HANDOFF = pb.PrefillHandoff(params=b"any \xff bytes", ttl_seconds=3)
LENGTH = pb.FINISH_REASON_LENGTH


def chunk(**fields: object) -> Chunk:
    output = pb.LLMEngineOutput(**fields)
    return Chunk(output.index, output.first_output_position, list(output.token_ids), output)


def test_a_hand_off_is_passed_on_byte_for_byte():
    usage = pb.CompletionUsage(prompt_tokens_details=pb.PromptTokensDetails(cached_tokens=7))
    answer = chunk(finish_reason=LENGTH, prefill_handoff=HANDOFF, token_ids=[4], completion_usage=usage)
    result = result_of([answer])
    assert result.handoff.SerializeToString() == HANDOFF.SerializeToString()
    assert result.prompt_tokens_details.cached_tokens == 7


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([chunk(finish_reason=LENGTH)], pb.ERROR_REASON_PROTOCOL_VIOLATION),
        ([chunk(prefill_handoff=HANDOFF)], pb.ERROR_REASON_PROTOCOL_VIOLATION),
        (
            [chunk(finish_reason=LENGTH, prefill_handoff=HANDOFF, token_ids=[1, 2])],
            pb.ERROR_REASON_PROTOCOL_VIOLATION,
        ),
        ([chunk(finish_reason=LENGTH, prefill_handoff=HANDOFF)] * 2, pb.ERROR_REASON_PROTOCOL_VIOLATION),
        ([Chunk(0, 0, [3])], pb.ERROR_REASON_PROTOCOL_VIOLATION),
        ([chunk(finish_reason=pb.FINISH_REASON_EOS, token_ids=[3])], pb.ERROR_REASON_PROTOCOL_VIOLATION),
        (
            [chunk(finish_reason=pb.FINISH_REASON_ERROR, error_message="no")],
            pb.ERROR_REASON_INTERNAL,
        ),
        ([chunk(finish_reason=pb.FINISH_REASON_CANCELLED)], pb.ERROR_REASON_CANCELLED),
    ],
)
def test_any_other_answer_of_a_prefill_engine_is_a_failure(chunks, reason):
    with pytest.raises(RequestFailed) as failure:
        result_of(chunks)
    assert failure.value.reason == reason


def test_a_prefill_that_a_drain_has_cancelled_can_be_done_elsewhere():
    with pytest.raises(RequestFailed) as failure:
        result_of([chunk(finish_reason=pb.FINISH_REASON_CANCELLED)], is_handed_back=True)
    assert (failure.value.reason, failure.value.retryable) == (pb.ERROR_REASON_DRAINING, True)
