"""Prefill and decode servers over real sockets: what each role answers, refuses, counts and frees.

With the mocker: the hand-offs are real files, only without keys and values in them.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from enginewire import v1 as pb
from tests.server.serving import Answer, Serving, ask, seconds, submit


def hand_offs(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder / "kv") if not name.endswith(".lock")]


def handed_over(request: pb.GenerateRequest, answer: Answer) -> pb.GenerateRequest:
    """The second half of a request whose first half was answered."""
    half = pb.GenerateRequest()
    half.CopyFrom(request)
    half.request.prefill_result.handoff.CopyFrom(answer.outputs[-1].prefill_handoff)
    return half


async def until_claimed(serving: Serving) -> None:
    await serving.until(lambda load: load.pending_transfers == 0)


async def test_both_halves_together_are_the_answer_of_an_aggregated_engine(role_server, socket_folder):
    whole, prefill, decode = [await role_server(role) for role in ("aggregated", "prefill", "decode")]
    options = pb.SamplingOptions(n=3, temperature=1, seed=4)
    request = ask("r", sampling_options=options, output_options=pb.OutputOptions(logprobs=2))
    first = await prefill.generate(request)
    assert first.finishes() == {0: pb.FINISH_REASON_LENGTH}
    assert (first.tokens(), first.usage()) == ([], (5, 0))
    assert len(first.outputs) == 1
    assert (await prefill.load()).pending_transfers == len(hand_offs(socket_folder)) == 1
    second = await decode.generate(handed_over(request, first))
    wanted = await whole.generate(request)
    assert [second.tokens(i) for i in range(3)] == [wanted.tokens(i) for i in range(3)]
    assert [str(output.logprobs) for output in second.outputs] == [str(o.logprobs) for o in wanted.outputs]
    assert second.usage() == wanted.usage()
    await until_claimed(prefill)
    assert hand_offs(socket_folder) == []


async def test_both_halves_go_over_one_stream_each(role_server):
    prefill, decode = await role_server("prefill"), await role_server("decode")
    requests = {i: ask(f"r{i}", sampling_options=pb.SamplingOptions(n=2)) for i in range(20)}
    first = await prefill.multiplexed([submit(i, request) for i, request in requests.items()])
    halves = [submit(i, handed_over(request, first[i])) for i, request in requests.items()]
    second = await decode.multiplexed(halves)
    assert {i: (len(a.tokens(0)), len(a.tokens(1))) for i, a in second.items()} == dict.fromkeys(
        range(20), (8, 8)
    )
    await until_claimed(prefill)


async def test_an_adapter_is_the_same_when_its_files_are(role_server, tmp_path):
    servers = []
    for role, rank in (("prefill", 4), ("decode", 4), ("decode", 8)):
        adapter = tmp_path / f"{role}{rank}" / "one"
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text(f'{{"r": {rank}}}')
        serving = await role_server(role, adapter_folder=adapter.parent)
        await pb.AdminServiceStub(serving.channel).LoadAdapter(pb.LoadAdapterRequest(name="a", source="one"))
        servers.append(serving)
    prefill, same, other = servers
    request = ask(model="a")
    half = handed_over(request, await prefill.generate(request))
    refused = await other.generate(half)
    assert refused.failure.reason == pb.ERROR_REASON_HANDOFF_INVALID
    assert len((await same.generate(half)).tokens()) == 8
    await until_claimed(prefill)


async def test_the_usage_of_the_second_half_has_the_details_of_the_first(role_server):
    prefill, decode = await role_server("prefill"), await role_server("decode")
    half = handed_over(ask(), await prefill.generate(ask()))
    half.request.prefill_result.prompt_tokens_details.cached_tokens = 3
    answer = await decode.generate(half)
    assert answer.outputs[-1].completion_usage == pb.CompletionUsage(
        prompt_tokens=5,
        completion_tokens=8,
        total_tokens=13,
        prompt_tokens_details=pb.PromptTokensDetails(cached_tokens=3),
    )


async def test_a_hand_off_is_good_for_one_of_many_takers(role_server):
    prefill, decode, other = (
        await role_server("prefill"),
        await role_server("decode"),
        await role_server("decode"),
    )
    first = await prefill.generate(ask("r"))
    takers = [
        serving.generate(handed_over(ask(f"t{i}"), first)) for i in range(8) for serving in (decode, other)
    ]
    answers = await asyncio.gather(*takers)
    assert sorted(len(answer.tokens()) for answer in answers) == [0] * 15 + [8]
    reasons = {answer.failure.reason for answer in answers if answer.failure}
    assert reasons == {pb.ERROR_REASON_HANDOFF_INVALID}


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        (b"", {}),
        (b"\xff\x00", {}),
        (b"enginewire-kv-1/../../etc/passwd/" + b"0" * 64, {}),
        (b"enginewire-kv-1/" + b"a" * 16 + b"-" + b"b" * 32 + b"/" + b"c" * 64, {}),
        (None, {"host": "127.0.0.1"}),
        (None, {"port": 7}),
        (None, {"room": 7}),
    ],
)
async def test_a_forged_hand_off_is_refused_and_the_real_one_stays(role_server, params, fields):
    prefill, decode = await role_server("prefill"), await role_server("decode")
    first = await prefill.generate(ask())
    half = handed_over(ask("forged"), first)
    half.request.prefill_result.handoff.MergeFrom(pb.PrefillHandoff(params=params, **fields))
    if params is not None:
        half.request.prefill_result.handoff.params = params
    answer = await decode.generate(half)
    assert answer.failure is not None
    assert answer.failure.reason == pb.ERROR_REASON_HANDOFF_INVALID
    assert answer.failure.field == "prefill_result.handoff"
    assert (await prefill.load()).pending_transfers == 1
    assert (await decode.generate(handed_over(ask(), first))).finishes() == {0: pb.FINISH_REASON_LENGTH}


@pytest.mark.parametrize("position", [20, 70, 100])
async def test_a_hand_off_with_one_changed_byte_is_refused(role_server, position):
    prefill, decode = await role_server("prefill"), await role_server("decode")
    half = handed_over(ask(), await prefill.generate(ask()))
    params = bytearray(half.request.prefill_result.handoff.params)
    params[position] = ord("0") if params[position] != ord("0") else ord("1")
    half.request.prefill_result.handoff.params = bytes(params)
    answer = await decode.generate(half)
    assert answer.failure is not None
    assert answer.failure.reason == pb.ERROR_REASON_HANDOFF_INVALID


@pytest.mark.parametrize("changed", [{"prompt": b"hellp"}, {"prompt": b"hell"}, {"cache_salt": "tenant"}])
async def test_a_hand_off_of_another_prompt_or_tenant_is_refused(role_server, changed):
    prefill, decode = await role_server("prefill"), await role_server("decode")
    first = await prefill.generate(ask())
    answer = await decode.generate(handed_over(ask("other", **changed), first))
    assert answer.failure is not None
    assert answer.failure.reason == pb.ERROR_REASON_HANDOFF_INVALID
    assert (await decode.generate(handed_over(ask(), first))).failure is None


async def test_requests_of_another_role_are_refused(role_server):
    whole, prefill, decode = [await role_server(role) for role in ("aggregated", "prefill", "decode")]
    half = handed_over(ask(), await prefill.generate(ask("first")))
    refused = [await whole.generate(half), await prefill.generate(half), await decode.generate(ask())]
    assert [answer.failure and answer.failure.reason for answer in refused] == [
        pb.ERROR_REASON_ROLE_MISMATCH
    ] * 3
    for serving in (prefill, decode):
        request = ask(bootstrap_info=pb.BootstrapInfo(bootstrap_host="h", bootstrap_port=1, bootstrap_room=1))
        failure = (await serving.generate(request)).failure
        assert failure is not None
        assert (failure.reason, failure.field) == (pb.ERROR_REASON_UNSUPPORTED, "bootstrap_info")
    assert (await prefill.load()).pending_transfers == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_probe_is_generated_in_every_role_and_leaves_nothing(role_server, socket_folder, role):
    serving = await role_server(role)
    probe = pb.GenerateRequest(
        request_id="p", request=pb.PreprocessedRequest(token_ids=[1, 2, 3], is_probe=True)
    )
    answer = await serving.generate(probe)
    assert len(answer.tokens()) == 1
    assert not answer.outputs[-1].HasField("prefill_handoff")
    assert (await serving.load()).pending_transfers == 0
    assert hand_offs(socket_folder) == []


async def test_an_unclaimed_hand_off_is_freed_when_its_time_is_over(role_server, socket_folder):
    prefill, decode = await role_server("prefill", kv_transfer_ttl=0.2), await role_server("decode")
    first = await prefill.generate(ask())
    assert first.outputs[-1].prefill_handoff.ttl_seconds == 0.2
    await until_claimed(prefill)
    assert hand_offs(socket_folder) == []
    late = await decode.generate(handed_over(ask(), first))
    assert late.failure is not None
    assert late.failure.reason == pb.ERROR_REASON_HANDOFF_INVALID


async def test_abort_frees_the_hand_off_of_a_request_that_has_ended(role_server, socket_folder):
    prefill = await role_server("prefill")
    await prefill.generate(ask("kept"))
    await prefill.generate(ask("given-up"))
    response = await prefill.engine.Abort(pb.AbortRequest(request_ids=["given-up"]))
    assert response.results[0].outcome == pb.ABORT_OUTCOME_FINISHED
    assert (await prefill.load()).pending_transfers == len(hand_offs(socket_folder)) == 1


async def test_a_prefill_that_fails_or_is_aborted_hands_nothing_over(role_server, socket_folder):
    prefill = await role_server("prefill", mocker_ttft_ms=10_000.0, mocker_fault="forward:fails")
    failed = await prefill.generate(ask("fails"))
    assert failed.failure is not None
    running = asyncio.create_task(prefill.generate(ask("r", sampling_options=pb.SamplingOptions(n=2))))
    await prefill.until(lambda load: load.running == 1)
    await prefill.engine.Abort(pb.AbortRequest(request_ids=["r"]))
    aborted = await running
    assert aborted.finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert not aborted.outputs[-1].HasField("prefill_handoff")
    assert (await prefill.load()).pending_transfers == 0
    assert hand_offs(socket_folder) == []


async def test_a_drain_waits_until_the_hand_offs_are_claimed(role_server):
    prefill, decode = await role_server("prefill"), await role_server("decode")
    first = await prefill.generate(ask())
    drain = prefill.engine.Drain(pb.DrainRequest(deadline=seconds(10)))
    async for progress in drain:
        if progress.pending_transfers == 1 and progress.state == pb.DRAIN_STATE_DRAINING:
            break
    await decode.generate(handed_over(ask(), first))
    states = [progress.state async for progress in drain]
    assert states[-1] == pb.DRAIN_STATE_DRAINED


async def test_a_drain_whose_hand_offs_nobody_claims_times_out_and_cleanup_frees_them(
    role_server, socket_folder
):
    prefill = await role_server("prefill")
    await prefill.generate(ask())
    drain = prefill.engine.Drain(pb.DrainRequest(deadline=seconds(0.2)))
    states = [progress.state async for progress in drain]
    assert states[-1] == pb.DRAIN_STATE_TIMED_OUT
    await prefill.engine.Cleanup(pb.CleanupRequest())
    assert (await prefill.load()).pending_transfers == 0
    assert os.listdir(socket_folder / "kv") == []
