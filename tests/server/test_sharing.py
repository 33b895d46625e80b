"""Callers that share an engine: nobody waits behind another's flood, limits hold, and what is taken comes
back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.access.access import TENANT_KEY
from enginewire.access.roles import Role
from tests.keys import KEYS, bearing, line_of
from tests.server.serving import (
    Advertising,
    Answer,
    Serving,
    abort_frame,
    ask,
    collect,
    in_one_frame,
    seconds,
    submit,
)

FLOOD, MINE, TRUSTED, ADMIN = (
    "canary-flood-51a9c2e8",
    "canary-mine-7c1d03bb",
    "canary-trusted-09ab",
    KEYS[Role.ADMIN],
)


@pytest.fixture(autouse=True)
def idle_as_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fixture asks of every server at the end, it asks with a key."""

    async def load(serving: Serving) -> pb.Load:
        return (await serving.discovery.GetLoad(pb.GetLoadRequest(), metadata=bearing(ADMIN))).load

    monkeypatch.setattr(Serving, "load", load)


@pytest.fixture
def start(engine_server, tmp_path: Path):
    """A mocker whose callers have what is said of them in a file."""

    async def started(flood: str = "", mine: str = "", more: str = "", **options: object) -> Serving:
        file = tmp_path / "callers"
        file.write_text(
            line_of(FLOOD, Role.INFER, f"name=flood {flood}")
            + line_of(MINE, Role.INFER, f"name=mine {mine}")
            + line_of(TRUSTED, Role.INFER, "name=backend tenants=yes")
            + line_of(ADMIN, Role.ADMIN)
            + more
        )
        return await engine_server(
            api_key_file=file, **{"max_num_seqs": 4, "max_caller_share": 0.75, "mocker_itl_ms": 1, **options}
        )

    return started


def flood_of(
    serving: Serving, number: int, key: str = FLOOD, **request: object
) -> asyncio.Task[dict[int, Answer]]:
    """So many requests of one caller on one stream."""
    frame = in_one_frame(submit(index, ask(f"flood{index}", **request)) for index in range(number))
    call = serving.engine.GenerateMultiplexed(iter([frame]), metadata=bearing(key))
    return asyncio.create_task(collect(call))


async def refused(
    serving: Serving, request: pb.GenerateRequest, metadata: tuple[tuple[str, str], ...]
) -> pb.ErrorDetail:
    """How a request is refused before it is accepted."""
    answer = await serving.generate(request, metadata=metadata)
    assert answer.failure is not None
    assert not answer.is_accepted
    return answer.failure


async def test_a_newcomer_overtakes_a_flood_that_then_finishes_whole(start) -> None:
    serving = await start(mocker_itl_ms=4)
    flood = flood_of(serving, 60, max_tokens=20)
    await serving.until(lambda load: load.running == 3 and load.waiting >= 20)
    answer = await serving.generate(ask("mine", max_tokens=2), metadata=bearing(MINE))
    assert len(answer.tokens()) == 2
    assert (await serving.load()).waiting > 0, "it was the last one"
    answers = await flood
    assert {len(answer.tokens()) for answer in answers.values()} == {20}


async def test_what_waits_counts_in_the_load_and_is_aborted_and_late_like_any_other(start) -> None:
    serving = await start(mocker_itl_ms=50)
    running = flood_of(serving, 3, max_tokens=100)
    await serving.until(lambda load: load.running == 3)
    frames: asyncio.Queue[pb.GenerateMultiplexedRequest | None] = asyncio.Queue()

    async def sent() -> AsyncIterator[pb.GenerateMultiplexedRequest]:
        while (frame := await frames.get()) is not None:
            yield frame

    waiting = asyncio.create_task(
        collect(serving.engine.GenerateMultiplexed(sent(), metadata=bearing(FLOOD)))
    )
    choices = pb.SamplingOptions(n=3)
    await frames.put(submit(1, ask("aborted", sampling_options=choices)))
    await frames.put(submit(2, ask("late"), timeout=seconds(0.2)))
    await frames.put(submit(3, ask("by-id", prompt=b"four")))
    load = await serving.until(lambda load: load.waiting == 3)
    assert load.waiting_tokens >= 4
    await frames.put(abort_frame(1))
    await serving.engine.Abort(pb.AbortRequest(request_ids=["by-id"]), metadata=bearing(FLOOD))
    await serving.until(lambda load: load.waiting == 0)
    await frames.put(None)
    answers = await waiting
    assert answers[1].finishes() == dict.fromkeys(range(3), pb.FINISH_REASON_CANCELLED)
    assert answers[1].usage() == (5, 0)
    assert answers[3].finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert answers[2].failure.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED
    load = await serving.load()
    assert (load.running, load.requests_finished) == (3, 3), (
        "the engine has not heard of them, and ended none"
    )
    await serving.engine.Abort(pb.AbortRequest(all=True), metadata=bearing(ADMIN))
    await running
    assert (await serving.until_idle()).requests_finished == 3 + 3


async def test_a_drain_hands_back_what_waits(start) -> None:
    serving = await start(mocker_itl_ms=20)
    flood = flood_of(serving, 6, max_tokens=20)
    await serving.until(lambda load: load.waiting == 3)
    await serving.engine.Drain(pb.DrainRequest(), metadata=bearing(ADMIN)).read()
    answers = await flood
    failures = [answer.failure for answer in answers.values() if answer.failure]
    assert [(each.reason, each.retryable) for each in failures] == [(pb.ERROR_REASON_DRAINING, True)] * 3


async def test_a_wrong_request_is_refused_at_once_though_it_would_have_to_wait(start) -> None:
    serving = await start(mocker_itl_ms=20)
    flood = flood_of(serving, 5, max_tokens=20)
    await serving.until(lambda load: load.waiting == 2)
    wide = ask("wide", prompt=b"x" * 40, max_tokens=10)
    wide.request.routing.lora_name = ""
    wide.request.stop_conditions.stop.append("text")
    detail = await refused(serving, wide, bearing(FLOOD))
    assert detail.reason == pb.ERROR_REASON_UNSUPPORTED
    assert detail.field == "stop_conditions.stop"
    await flood


@pytest.mark.parametrize(
    ("fields", "limit", "request_fields", "retries"),
    [
        ("max_parallel_requests=2", "max_parallel_requests", {"n": 3}, False),
        ("max_parallel_requests=3", "max_parallel_requests", {"n": 3}, True),
        ("max_parallel_tokens=60", "max_parallel_tokens", {}, True),
        ("rpm_limit=3", "rpm_limit", {"n": 3}, True),
        ("tpm_limit=6", "tpm_limit", {}, True),
    ],
)
async def test_a_callers_limits_are_named_and_say_when_to_come_again(
    start, fields: str, limit: str, request_fields: dict[str, int], retries: bool
) -> None:
    serving = await start(flood=fields, mocker_itl_ms=20)
    options = pb.SamplingOptions(n=request_fields.get("n", 1))
    first = ask("first", max_tokens=50)
    running = asyncio.create_task(serving.generate(first, metadata=bearing(FLOOD)))
    await serving.until(lambda load: load.running == 1)
    more = ask("more", sampling_options=options, max_tokens=50)
    detail = await refused(serving, more, bearing(FLOOD))
    assert detail.reason == pb.ERROR_REASON_QUEUE_FULL
    assert detail.metadata["caller_limit"] == limit
    assert detail.metadata["limit"] == fields.partition("=")[2]
    assert (detail.retryable, detail.HasField("retry_after")) == (retries, retries)
    assert len((await serving.generate(ask("other", max_tokens=2), metadata=bearing(MINE))).tokens()) == 2
    await serving.engine.Abort(pb.AbortRequest(request_ids=["first"]), metadata=bearing(FLOOD))
    await running


async def test_a_callers_waiting_requests_have_a_limit_of_their_own(start) -> None:
    serving = await start(flood="max_waiting_requests=2", mocker_itl_ms=20)
    answers = await flood_of(serving, 7, max_tokens=10)
    failures = [answer.failure for answer in answers.values() if answer.failure]
    assert [each.metadata["caller_limit"] for each in failures] == ["max_waiting_requests"] * 2


async def test_one_callers_requests_leave_room_in_the_queue_for_another(start) -> None:
    serving = await start(mocker_itl_ms=5, max_num_queued_reqs=8)
    flood = flood_of(serving, 40, max_tokens=60)
    await serving.until(lambda load: load.waiting == 6)
    answer = await serving.generate(ask("mine", max_tokens=2), metadata=bearing(MINE))
    assert len(answer.tokens()) == 2
    assert sum(answer.failure is not None for answer in (await flood).values()) == 31


@pytest.mark.parametrize(
    ("routing", "field"),
    [
        ({"priority": -1}, "routing.priority"),
        ({"priority": 0, "priority_jump": 0.5}, "routing.priority_jump"),
        ({"priority": -1, "priority_jump": 0.5}, "routing.priority"),
        ({"priority": 0}, None),
        ({"priority": 1, "priority_jump": -1.0}, None),
    ],
)
async def test_nobody_is_more_urgent_than_allowed(
    start, routing: dict[str, float], field: str | None
) -> None:
    serving = await start(flood="min_priority=0", engine=Advertising(priority=True))
    request = ask(max_tokens=2, routing=pb.RoutingHints(**routing))
    if field is None:
        answer = await serving.generate(request, metadata=bearing(FLOOD))
        assert len(answer.tokens()) == 2
    else:
        detail = await refused(serving, request, bearing(FLOOD))
        assert (detail.reason, detail.field) == (pb.ERROR_REASON_AUTH, field)


async def test_one_callers_prompts_leave_room_in_the_queue_for_another(start) -> None:
    """Of 40 tokens a caller may have 30: six prompts of five."""
    serving = await start(mocker_itl_ms=5, max_num_queued_tokens=40)
    flood = flood_of(serving, 20, max_tokens=20)
    await serving.until(lambda load: load.waiting == 6)
    answer = await serving.generate(ask("mine", max_tokens=2), metadata=bearing(MINE))
    assert len(answer.tokens()) == 2
    failures = [answer.failure for answer in (await flood).values() if answer.failure]
    assert [each.reason for each in failures] == [pb.ERROR_REASON_QUEUE_FULL] * 11


async def test_tenants_of_a_trusted_backend_share_as_callers_do(start) -> None:
    serving = await start(more="tenant small max_parallel_requests=1\ntenant * max_parallel_requests=30\n")
    flood = asyncio.create_task(
        collect(
            serving.engine.GenerateMultiplexed(
                iter(
                    [
                        submit(index, ask(f"f{index}", max_tokens=60), metadata={TENANT_KEY: "big"})
                        for index in range(40)
                    ]
                ),
                metadata=bearing(TRUSTED),
            )
        )
    )
    await serving.until(lambda load: load.waiting >= 20)
    small = ((TENANT_KEY, "small"), *bearing(TRUSTED))
    answer = await serving.generate(ask("s", max_tokens=2), metadata=small)
    assert len(answer.tokens()) == 2
    assert (await serving.load()).waiting >= 15
    detail = await refused(serving, ask("s", sampling_options=pb.SamplingOptions(n=2)), small)
    assert detail.metadata["caller_limit"] == "max_parallel_requests"
    detail = await refused(serving, ask("s"), ((TENANT_KEY, "no tenant"), *bearing(TRUSTED)))
    assert detail.field == TENANT_KEY
    # From whoever may not name tenants it is metadata like any other.
    await serving.generate(ask("s", max_tokens=1), metadata=((TENANT_KEY, "no tenant"), *bearing(MINE)))
    assert sum(answer.failure is not None for answer in (await flood).values()) == 10


async def test_a_key_that_is_taken_away_is_refused_on_a_stream_that_goes_on(start, tmp_path: Path) -> None:
    serving = await start()
    frames: asyncio.Queue[pb.GenerateMultiplexedRequest | None] = asyncio.Queue()

    async def sent() -> AsyncIterator[pb.GenerateMultiplexedRequest]:
        while (frame := await frames.get()) is not None:
            yield frame

    call = serving.engine.GenerateMultiplexed(sent(), metadata=bearing(MINE))
    answers = asyncio.create_task(collect(call))
    await frames.put(submit(1, ask("before", max_tokens=1)))
    await serving.until(lambda load: load.requests_finished == 1)
    file = tmp_path / "callers"
    left = [each for each in file.read_text().splitlines() if "name=mine" not in each]
    file.write_text("\n".join(left))
    await frames.put(submit(2, ask("after")))
    await frames.put(None)
    found = await answers
    assert len(found[1].tokens()) == 1
    assert found[2].failure.reason == pb.ERROR_REASON_AUTH


async def test_embeddings_wait_for_their_turn_and_can_be_left_meanwhile(start) -> None:
    serving = await start(mocker_itl_ms=20)
    flood = flood_of(serving, 5, max_tokens=20)
    await serving.until(lambda load: load.waiting == 2)
    request = pb.PreprocessedEmbeddingRequest()
    request.token_ids.add().token_ids.extend([1, 2])
    embeds = [
        serving.embedding.Embed(pb.EmbedRequest(request_id=name, request=request), metadata=bearing(FLOOD))
        for name in ("left", "stays")
    ]
    await serving.until(lambda load: load.waiting == 4)
    embeds[0].cancel()
    await serving.until(lambda load: load.waiting <= 3)
    assert len((await embeds[1]).output.embeddings) == 1
    await flood
