"""Routing hints: who serves a request of a backend with several engines."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.choice.routing_hints import read_hints
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.replay.prefill import prompt_part
from enginewire.backend.replay.retry import RetryPolicy
from tests.backend.asking import Heard, ask, hear
from tests.backend.hostile import HostileEngine, terminal, tokens
from tests.backend.replay.test_attempts import LOST, QUICK, Lives, backend_on
from tests.backend.replay.test_prefill import backend_of, claimed
from tests.enginewire.tracing.test_trace_context import SPAN, TRACE, VALID
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Serving, seconds, until_true

IDS = (7, 8, 2**64 - 1)
PATIENT = RetryPolicy(recovery=30 * PATIENCE_SECONDS)
"""Who waits for an engine with it waits longer than a test does."""


@asynccontextmanager
async def backend_with(engine_server, vocabulary, ids=IDS, policy: RetryPolicy | None = QUICK, **options):
    """A backend in front of mockers with these worker ids, and the mockers."""
    all_serving = [await engine_server(worker_id=worker_id, **options) for worker_id in ids]
    clients = [EngineClient(serving.server.target) for serving in all_serving]
    async with Endpoints(clients) as engines:
        yield Backend(engines, vocabulary, retry=policy), all_serving


async def served(all_serving: list[Serving]) -> list[int]:
    """How many requests each engine has served."""
    return [(await serving.load()).requests_finished for serving in all_serving]


async def hear_with(backend: Backend, metadata=None, **routing: object) -> Heard:
    return await hear(backend, ask(routing=pb.RoutingHints(**routing)), metadata=metadata)


@pytest.mark.parametrize("name", ["backend_instance_id", "decode_worker_id"])
async def test_the_engine_that_is_named_serves(engine_server, vocabulary, name: str) -> None:
    async with backend_with(engine_server, vocabulary) as (backend, all_serving):
        for worker_id in (8, 2**64 - 1, 8):
            heard = await hear_with(backend, **{name: worker_id})
            assert heard.failure is None
        assert await served(all_serving) == [0, 2, 1]


async def test_only_engines_that_are_allowed_serve(engine_server, vocabulary) -> None:
    async with backend_with(engine_server, vocabulary) as (backend, all_serving):
        hints = {"allowed_worker_ids": [7, 2**64 - 1, 99]}
        found = await asyncio.gather(*(hear_with(backend, **hints) for _ in range(12)))
        assert all(heard.failure is None for heard in found)
        counts = await served(all_serving)
    assert counts[1] == 0
    assert counts[0] > 0
    assert counts[2] > 0


@pytest.mark.parametrize("policy", [PATIENT, None], ids=["replay", "no replay"])
@pytest.mark.parametrize(
    ("field", "routing"),
    [
        ("routing.backend_instance_id", {"backend_instance_id": 9}),
        ("routing.decode_worker_id", {"decode_worker_id": 0}),
        ("routing.allowed_worker_ids", {"allowed_worker_ids": [1, 2]}),
        ("routing.prefill_worker_id", {"prefill_worker_id": 7}),
        ("routing.decode_worker_id", {"backend_instance_id": 7, "decode_worker_id": 8}),
    ],
)
async def test_a_hint_that_names_nobody_is_refused_at_once(
    engine_server, vocabulary, policy, field: str, routing: dict[str, object]
) -> None:
    async with backend_with(engine_server, vocabulary, policy=policy) as (backend, all_serving):
        async with asyncio.timeout(PATIENCE_SECONDS):
            heard = await hear_with(backend, **routing)
        assert heard.failure is not None
        assert (heard.failure.reason, heard.failure.field) == (pb.ERROR_REASON_INVALID_REQUEST, field)
        assert (heard.failure.code, heard.failure.retryable) == (3, False)
        assert await served(all_serving) == [0, 0, 0]
        assert (await hear(backend, ask())).failure is None


async def test_one_engine_is_no_exception(engine_server, vocabulary) -> None:
    async with backend_with(engine_server, vocabulary, ids=(7,)) as (backend, _):
        assert (await hear_with(backend, backend_instance_id=7)).failure is None
        failure = (await hear_with(backend, backend_instance_id=8)).failure
    assert failure is not None
    assert failure.field == "routing.backend_instance_id"


async def test_an_engine_without_an_id_cannot_be_named(socket_folder, vocabulary) -> None:
    async with backend_on(socket_folder, vocabulary, HostileEngine()) as backend:
        failure = (await hear_with(backend, backend_instance_id=0)).failure
        assert failure is not None
        assert failure.field == "routing.backend_instance_id"
        assert (await hear(backend, ask())).failure is None


async def test_a_named_engine_that_drains_is_waited_for_and_then_said_to_be_away(
    engine_server, vocabulary
) -> None:
    async with backend_with(engine_server, vocabulary) as (backend, all_serving):
        assert (await hear_with(backend, backend_instance_id=8)).failure is None
        all_serving[1].engine.Drain(pb.DrainRequest(deadline=seconds(5)))
        await until_true(lambda: backend.engines.all[1].is_draining)
        failure = (await hear_with(backend, backend_instance_id=8)).failure
        assert failure is not None
        assert (failure.reason, failure.field) == (
            pb.ERROR_REASON_NOT_STARTED,
            "routing.backend_instance_id",
        )
        assert failure.retryable
        assert (await hear_with(backend, routing_key="k")).failure is None


def lives_with(worker_id: int, *scripts: object, **capabilities: bool) -> Lives:
    engine = Lives(*scripts, **capabilities)
    engine.info.worker_id = worker_id
    return engine


async def test_an_answer_that_lost_its_named_engine_goes_on_there_and_nowhere_else(
    socket_folder, vocabulary
) -> None:
    named = lives_with(7, [tokens(b"pon"), LOST], [terminal(b"g", 3)])
    other = lives_with(8)
    async with backend_on(socket_folder, vocabulary, other, named) as backend:
        heard = await hear_with(backend, backend_instance_id=7)
    assert heard.text() == "pong"
    assert [item.event for item in heard.items if item.data is None] == ["migrated"]
    assert (len(named.received), len(other.received)) == (2, 0)


async def test_a_lost_engine_that_comes_back_as_another_leaves_the_failure(socket_folder, vocabulary) -> None:
    engine = lives_with(7, [tokens(b"pon"), LOST])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        items = []
        async for item in backend.generate(ask(routing=pb.RoutingHints(backend_instance_id=7))):
            items.append(item)
            engine.info.worker_id, engine.info.engine_lifetime_id = 9, "next"
            endpoint = backend.engines.all[0]
            endpoint.heard(pb.Load(state=pb.ENGINE_STATE_READY, engine_lifetime_id="next"))
    assert items[-1].error is not None
    assert items[-1].error.reason == pb.ERROR_REASON_ENGINE_DEAD


async def home_of(backend: Backend, all_serving: list[Serving], **hints: object) -> int:
    """Which engine serves a request with these hints."""
    before = await served(all_serving)
    assert (await hear_with(backend, **hints)).failure is None
    now = await served(all_serving)
    return [after - earlier for after, earlier in zip(now, before, strict=True)].index(1)


async def test_equal_keys_go_to_the_same_engine_and_many_keys_to_all(engine_server, vocabulary) -> None:
    async with backend_with(engine_server, vocabulary) as (backend, all_serving):
        keys = list(map(str, range(48)))
        homes = [await home_of(backend, all_serving, routing_key=key) for key in keys]
        assert set(homes) == {0, 1, 2}
        again = [
            await home_of(backend, all_serving, metadata={"enginewire-routing-key": key}) for key in keys[:4]
        ]
    assert again == homes[:4]


async def test_only_the_keys_of_an_engine_that_left_move(engine_server, vocabulary) -> None:
    async with backend_with(engine_server, vocabulary) as (backend, _):
        engines = backend.engines
        for endpoint in engines.all:
            endpoint.heard(pb.Load(state=pb.ENGINE_STATE_READY))
        hints = [pb.RoutingHints(routing_key=str(number)) for number in range(60)]
        before = [await engines.pick(0.0, hints=read_hints(each)) for each in hints]
        gone = engines.all[1]
        after = [await engines.pick(0.0, unfit={gone}, hints=read_hints(each)) for each in hints]
    for first, second in zip(before, after, strict=True):
        assert second is not gone
        assert second is first or first is gone
    assert set(after) == {engines.all[0], engines.all[2]}


async def test_the_requests_of_a_session_stay_together_whatever_the_load(engine_server, vocabulary) -> None:
    async with backend_with(engine_server, vocabulary, mocker_itl_ms=2.0) as (backend, all_serving):
        session = {"session_control": pb.SessionControl(session_id="mine")}
        home = await home_of(backend, all_serving, **session)
        lasting = ask(max_tokens=4000, routing=pb.RoutingHints(backend_instance_id=IDS[home]))
        lasting.stop_conditions.ignore_eos = True
        busy = [asyncio.create_task(hear(backend, lasting)) for _ in range(4)]
        await until_true(lambda: backend.engines.all[home].in_flight == len(busy))
        assert await home_of(backend, all_serving) != home
        for _ in range(3):
            assert await home_of(backend, all_serving, **session) == home
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


async def places(backend: Backend, *controls: pb.SessionControl) -> list[int]:
    """The engine chosen for each, when the others always have less to do than the one before."""
    found: list[int] = []
    for control in controls:
        for index, endpoint in enumerate(backend.engines.all):
            waiting = 5 if found and index == found[-1] else 0
            endpoint.heard(pb.Load(state=pb.ENGINE_STATE_READY, waiting=waiting))
        hints = read_hints(pb.RoutingHints(session_control=control))
        found.append(backend.engines.all.index(await backend.engines.pick(0.0, hints=hints)))
        backend.engines.leave(hints)
    return found


async def test_opening_and_closing_a_session_lets_the_load_decide_again(engine_server, vocabulary) -> None:
    targets = [EngineClient(f"unix:/nowhere/{number}") for number in range(3)]
    backend = Backend(Endpoints(targets), vocabulary)
    plain = pb.SessionControl(session_id="s")
    opens = pb.SessionControl(session_id="s", action=pb.SESSION_ACTION_OPEN)
    closes = pb.SessionControl(session_id="s", action=pb.SESSION_ACTION_CLOSE)
    first, second, third, fourth, fifth, sixth = await places(
        backend, opens, plain, opens, plain, closes, plain
    )
    assert first == second
    assert third != second
    assert third == fourth == fifth
    assert sixth != fifth
    await backend.engines.__aexit__(None, None, None)


async def test_a_session_moves_when_its_engine_is_gone_and_stays_there(vocabulary) -> None:
    engines = Endpoints([EngineClient(f"unix:/nowhere/{number}") for number in range(2)])
    hints = read_hints(pb.RoutingHints(session_control=pb.SessionControl(session_id="s")))
    for endpoint in engines.all:
        endpoint.heard(pb.Load(state=pb.ENGINE_STATE_READY))
    home = await engines.pick(0.0, hints=hints)
    home.lost()
    (other,) = set(engines.all) - {home}
    assert await engines.pick(0.0, hints=hints) is other
    home.heard(pb.Load(state=pb.ENGINE_STATE_READY))
    assert await engines.pick(0.0, hints=hints) is other
    await engines.__aexit__(None, None, None)


async def test_both_halves_of_a_request_go_where_they_shall(role_server, vocabulary) -> None:
    prefills = [await role_server("prefill", worker_id=number) for number in (1, 2)]
    decodes = [await role_server("decode", worker_id=number) for number in (3, 4)]
    async with backend_of(vocabulary, decodes, prefills) as backend:
        for _ in range(2):
            heard = await hear_with(backend, prefill_worker_id=2, decode_worker_id=3)
            assert heard.failure is None
        assert (await served(prefills), await served(decodes)) == ([0, 2], [2, 0])
        heard = await hear_with(backend, allowed_worker_ids=[1, 4])
        assert heard.failure is None
        assert (await served(prefills), await served(decodes)) == ([1, 2], [2, 1])
        for field, routing in (
            ("routing.prefill_worker_id", {"prefill_worker_id": 3}),
            ("routing.decode_worker_id", {"decode_worker_id": 1}),
            ("routing.allowed_worker_ids", {"allowed_worker_ids": [3, 4]}),
            ("routing.prefill_worker_id", {"prefill_worker_id": 1, "allowed_worker_ids": [2, 3]}),
        ):
            failure = (await hear_with(backend, **routing)).failure
            assert failure is not None
            assert (failure.reason, failure.field) == (pb.ERROR_REASON_INVALID_REQUEST, field)
    await claimed(*prefills)


def test_each_half_has_the_rank_that_is_meant_for_it() -> None:
    request = ask(routing=pb.RoutingHints(dp_rank=1, prefill_dp_rank=3), annotations=["a"])
    assert prompt_part(request).routing.dp_rank == 3
    request.routing.ClearField("prefill_dp_rank")
    assert not prompt_part(request).routing.HasField("dp_rank")
    assert request.routing.dp_rank == 1
    assert not prompt_part(request).annotations
    assert not prompt_part(ask()).HasField("routing")


async def test_another_attempt_points_at_the_trace_of_the_one_before(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), LOST], [terminal(b"g", 3)])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        assert (await hear(backend, ask(), metadata={"traceparent": VALID})).text() == "pong"
    first, second = engine.received
    assert not first.generate.request.HasField("migration_link")
    assert second.generate.request.migration_link == pb.TraceLink(trace_id=TRACE, span_id=SPAN)
    assert first.metadata["traceparent"] == second.metadata["traceparent"] == VALID


async def test_the_decode_half_points_at_the_trace_of_the_prefill_half(role_server, vocabulary) -> None:
    prefill, decode = await role_server("prefill"), await role_server("decode")
    parts = []
    async with backend_of(vocabulary, [decode], [prefill]) as backend:
        client = backend.client
        submit = client.submit

        async def watched(request, **options):
            parts.append(request.request)
            return await submit(request, **options)

        client.submit = watched
        assert (await hear(backend, ask(), metadata={"traceparent": VALID})).failure is None
    assert parts[0].migration_link == pb.TraceLink(trace_id=TRACE, span_id=SPAN)


async def test_a_configured_worker_id_is_advertised_and_a_drawn_one_differs(engine_server) -> None:
    infos = [
        await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())
        for serving in (await engine_server(worker_id=0), await engine_server(), await engine_server())
    ]
    assert infos[0].HasField("worker_id")
    assert infos[0].worker_id == 0
    assert len({info.worker_id for info in infos}) == 3
