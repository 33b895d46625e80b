"""Between reader and consumer: order, runs, ends, and a bound on what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed, violation
from enginewire.backend.engines.stream import BYTES_PER_TOKEN, EngineStream, Patience
from tests.patience import PATIENCE_SECONDS


def stream(max_waiting_tokens: int = 1000) -> tuple[EngineStream, list[str]]:
    aborts: list[str] = []
    return EngineStream("r1", aborts.append, max_waiting_tokens), aborts


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans(), st.booleans()), max_size=30))
def test_however_it_is_fed_and_read_every_choice_arrives_once_and_in_order(steps):
    async def run() -> None:
        fed: dict[int, list[int]] = {}
        read: dict[int, list[int]] = {}
        found, _ = stream()
        for index, count, as_output, is_read in steps:
            sent = fed.setdefault(index, [])
            ids = list(range(len(sent), len(sent) + count))
            if as_output:
                found.output(pb.LLMEngineOutput(index=index, first_output_position=len(sent), token_ids=ids))
            else:
                found.tokens(index, len(sent), list(ids))
            sent += ids
            if is_read:
                take(await found.read(), read)
        found.end()
        while chunks := await found.read():
            take(chunks, read)
        assert {index: ids for index, ids in fed.items() if ids} == {
            index: ids for index, ids in read.items() if ids
        }

    asyncio.run(run())


def take(chunks, read) -> None:
    for chunk in chunks:
        have = read.setdefault(chunk.index, [])
        assert chunk.first_output_position == len(have)
        have += chunk.token_ids


async def test_tokens_that_follow_each_other_are_one_chunk():
    found, _ = stream()
    found.tokens(0, 0, [1, 2])
    found.tokens(0, 2, [3])
    found.tokens(1, 0, [9])
    found.tokens(0, 3, [4])
    found.output(pb.LLMEngineOutput(first_output_position=4, token_ids=[5], engine_data=b"x"))
    found.tokens(0, 5, [6])
    chunks = await found.read()
    assert [(c.index, c.first_output_position, c.token_ids) for c in chunks] == [
        (0, 0, [1, 2, 3]),
        (1, 0, [9]),
        (0, 3, [4]),
        (0, 4, [5]),
        (0, 5, [6]),
    ]
    assert [c.output is not None for c in chunks] == [False, False, False, True, False]


@pytest.mark.parametrize("position", [0, 1, 3])
async def test_a_gap_or_a_repetition_stays_visible(position):
    found, _ = stream()
    found.tokens(0, 0, [1, 2])
    found.tokens(0, position, [3])
    assert [chunk.first_output_position for chunk in await found.read()] == [0, position]


async def test_a_failure_comes_after_everything_before_it_and_comes_again():
    found, aborts = stream()
    found.tokens(0, 0, [1])
    found.end(violation("x").failure)
    found.end()
    assert [chunk.token_ids for chunk in await found.read()] == [[1]]
    errors = []
    for _ in range(2):
        with pytest.raises(RequestFailed, match="protocol violation: x") as caught:
            await found.read()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    found.abort("too late")
    assert aborts == []


async def test_a_waiting_reader_wakes_for_tokens_and_for_the_end():
    found, _ = stream()
    reading = asyncio.create_task(found.read())
    await asyncio.sleep(0)
    found.tokens(0, 0, [1])
    found.wake()
    assert (await reading)[0].token_ids == [1]
    reading = asyncio.create_task(found.read())
    await asyncio.sleep(0)
    found.wake()
    await asyncio.sleep(0)
    assert not reading.done()
    found.end()
    found.wake()
    assert await reading == []


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(["output", "at once", "may wait"])),
        max_size=30,
    ),
    st.lists(st.booleans(), max_size=30),
    st.lists(st.sampled_from(["nothing", "wake", "run"]), min_size=1, max_size=30),
)
def test_whoever_takes_them_every_token_arrives_once_and_in_order(steps, answers, betweens):
    async def run() -> None:
        found, _ = stream()
        got: dict[int, list[int]] = {}
        fed: dict[int, int] = {}
        left = list(answers)

        def took(index: int, position: int, token_ids: list[int], arrived_at: float) -> bool:
            have = got.setdefault(index, [])
            assert position == len(have)
            have += token_ids
            return left.pop() if left else True

        async def consume() -> None:
            while chunks := await found.read(took):
                take(chunks, got)

        consuming = asyncio.create_task(consume())
        for place, (index, count, how) in enumerate(steps):
            position = fed.get(index, 0)
            fed[index] = position + count
            ids = list(range(position, position + count))
            if how == "output":
                message = pb.LLMEngineOutput(index=index, first_output_position=position, token_ids=ids)
                found.output(message)
            else:
                found.tokens(index, position, ids, 1.0 if how == "at once" else None)
            between = betweens[place % len(betweens)]
            if between != "nothing":
                found.wake()
            if between == "run":
                await asyncio.sleep(0)
        found.end()
        found.wake()
        await asyncio.wait_for(consuming, PATIENCE_SECONDS)
        assert {i: ids for i, ids in got.items() if ids} == {i: list(range(n)) for i, n in fed.items() if n}

    asyncio.run(run())


async def test_plain_tokens_go_at_once_to_whoever_takes_them_while_the_consumer_waits():
    found, _ = stream()
    taken: list[tuple[int, int, list[int]]] = []

    def take(index: int, position: int, token_ids: list[int], arrived_at: float) -> bool:
        taken.append((index, position, token_ids))
        return position < 2

    found.tokens(0, 0, [1])
    assert [chunk.token_ids for chunk in await found.read(take)] == [[1]]
    reading = asyncio.create_task(found.read(take))
    await asyncio.sleep(0)
    assert not found.tokens(0, 1, [2], 1.0)
    assert found.tokens(0, 2, [3, 4], 1.0)
    # The consumer has to look now, and what follows waits for it.
    assert found.tokens(0, 4, [5], 1.0)
    found.wake()
    chunks = await reading
    assert taken == [(0, 1, [2]), (0, 2, [3, 4])]
    assert [(chunk.first_output_position, chunk.token_ids) for chunk in chunks] == [(4, [5])]


async def test_what_may_wait_is_taken_in_longer_runs_when_the_consumer_would_be_woken():
    found, _ = stream()
    taken: list[tuple[int, list[int]]] = []
    reading = asyncio.create_task(
        found.read(lambda index, position, ids, now: taken.append((position, ids)) is None)
    )
    await asyncio.sleep(0)
    assert found.tokens(0, 0, [1])
    assert found.tokens(0, 1, [2])
    found.wake()
    assert taken == [(0, [1, 2])]
    found.tokens(0, 2, [3])
    found.output(pb.LLMEngineOutput(first_output_position=3, token_ids=[4], engine_data=b"x"))
    found.tokens(0, 4, [5])
    found.wake()
    chunks = await reading
    assert taken == [(0, [1, 2]), (2, [3])]
    assert [chunk.token_ids for chunk in chunks] == [[4], [5]]


async def test_a_taker_that_has_enough_lets_the_consumer_run_and_keeps_the_order():
    found, _ = stream()
    asked: list[int] = []
    reading = asyncio.create_task(
        found.read(lambda index, position, ids, now: asked.append(position) is not None)
    )
    await asyncio.sleep(0)
    found.tokens(0, 0, [1, 2])
    found.tokens(1, 0, [7])
    found.wake()
    found.tokens(0, 2, [3])
    found.wake()
    chunks = await reading
    assert asked == [0]
    assert [(c.index, c.first_output_position, c.token_ids) for c in chunks] == [
        (0, 2, []),
        (1, 0, [7]),
        (0, 2, [3]),
    ]


async def test_the_end_wakes_a_consumer_whose_tokens_were_taken():
    found, _ = stream()
    reading = asyncio.create_task(found.read(lambda index, position, ids, now: True))
    await asyncio.sleep(0)
    found.tokens(0, 0, [1])
    found.end()
    found.wake()
    assert await asyncio.wait_for(reading, PATIENCE_SECONDS) == []


async def test_nothing_is_taken_behind_what_the_consumer_has_not_seen():
    found, _ = stream()
    taken: list[int] = []
    reading = asyncio.create_task(
        found.read(lambda index, position, ids, now: taken.append(position) is None)
    )
    await asyncio.sleep(0)
    found.output(pb.LLMEngineOutput(token_ids=[1], engine_data=b"x"))
    assert found.tokens(0, 1, [2], 1.0)
    found.wake()
    assert [chunk.token_ids for chunk in await reading] == [[1], [2]]
    # Nobody waits now.
    assert found.tokens(0, 2, [3], 1.0)
    assert taken == []


async def test_an_abort_is_told_once_and_ends_the_stream():
    found, aborts = stream()
    found.abort("left")
    found.abort("again")
    assert aborts == ["left"]
    assert await found.read() == []


FEEDS = {
    "tokens": lambda found, n: found.tokens(0, 10 * n, list(range(10))),
    "one token at a time": lambda found, n: found.tokens(n % 2, n, [1]),
    "outputs": lambda found, n: found.output(pb.LLMEngineOutput(token_ids=[1], finish_reason=3)),
    "empty outputs": lambda found, n: found.output(pb.LLMEngineOutput()),
    "empty tokens": lambda found, n: found.tokens(n % 2, 0, []),
    "heavy outputs": lambda found, n: found.output(pb.LLMEngineOutput(engine_data=b"x" * 3200)),
}


@pytest.mark.parametrize("feed", FEEDS.values(), ids=FEEDS)
async def test_a_consumer_that_never_reads_is_given_up(feed):
    found, aborts = stream(max_waiting_tokens=1000)
    fed = 0
    while not found.ended:
        feed(found, fed)
        fed += 1
        assert fed <= 1001
    assert aborts == ["slow consumer"]
    # What waits is still handed out: it was delivered before the failure.
    chunks = await found.read()
    waiting = sum(len(chunk.token_ids) for chunk in chunks)
    waiting += sum(chunk.output.ByteSize() for chunk in chunks if chunk.output) // BYTES_PER_TOKEN
    assert waiting <= 1000 + 101
    assert fed >= 9
    with pytest.raises(RequestFailed) as caught:
        await found.read()
    assert caught.value.reason == pb.ERROR_REASON_SLOW_CONSUMER
    assert not caught.value.retryable


async def test_a_consumer_that_keeps_up_is_never_given_up():
    found, aborts = stream(max_waiting_tokens=100)
    for number in range(500):
        found.tokens(0, 10 * number, list(range(10)))
        await found.read()
    assert aborts == []


async def test_a_stream_that_expires_tells_the_engine_and_drops_what_came_too_late():
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    found = EngineStream("r1", told.set_result)
    found.expire_after(0.0)
    found.tokens(0, 0, [1])
    assert await asyncio.wait_for(told, PATIENCE_SECONDS) == "the deadline passed"
    with pytest.raises(RequestFailed) as caught:
        await found.read()
    assert caught.value.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED


async def test_a_waiting_reader_hears_that_the_stream_expired():
    found, _ = stream()
    reading = asyncio.create_task(found.read())
    found.expire_after(0.0)
    with pytest.raises(RequestFailed, match="the deadline passed"):
        await asyncio.wait_for(reading, PATIENCE_SECONDS)


async def test_a_stream_that_ended_in_time_does_not_expire():
    found, aborts = stream()
    found.expire_after(0.0)
    found.tokens(0, 0, [1])
    found.end()
    for _ in range(3):
        await asyncio.sleep(0)
    assert [chunk.token_ids for chunk in await found.read()] == [[1]]
    assert await found.read() == []
    assert aborts == []


class Clock:
    """A time that passes when a test says so, and what is due in it; stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[asyncio.TimerHandle] = []

    def monotonic(self) -> float:
        return self.now

    def call_later(
        self, seconds: float, callback: Callable[..., object], *given: object
    ) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        self._timers.append(asyncio.TimerHandle(self.now + seconds, callback, given, loop))
        return self._timers[-1]

    def passes(self, seconds: float) -> None:
        """Call what is due meanwhile, each at its time."""
        end = self.now + seconds
        while due := [timer for timer in self._timers if timer.when() <= end]:
            first = min(due)
            self._timers.remove(first)
            self.now = first.when()
            if not first.cancelled():
                first._run()
        self.now = end


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("enginewire.backend.engines.stream.time", made)
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", made.call_later)
    return made


@pytest.mark.parametrize("with_more", [False, True])
async def test_an_engine_that_goes_on_now_and_then_is_not_given_up(clock: Clock, with_more: bool) -> None:
    found, aborts = stream()
    found.listen(Patience(first_token=1.0, token=1.0))
    for position in range(8):
        clock.passes(0.8)
        if with_more:
            found.output(pb.LLMEngineOutput(first_output_position=position, token_ids=[position]))
        else:
            found.tokens(0, position, [position])
    assert (aborts, found.ended) == ([], False)
    assert [token for chunk in await found.read() for token in chunk.token_ids] == list(range(8))
    clock.passes(1.2)
    with pytest.raises(RequestFailed, match=r"nothing about the request for 1 s"):
        await found.read()
    assert len(aborts) == 1


async def test_before_the_first_token_patience_is_another(clock: Clock) -> None:
    found, _aborts = stream()
    found.listen(Patience(first_token=0.0, token=0.05))
    clock.passes(60.0)
    assert not found.ended
    found.tokens(0, 0, [1])
    await found.read()
    clock.passes(0.1)
    with pytest.raises(RequestFailed, match=r"0\.05 s"):
        await found.read()


async def test_what_has_ended_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda *due: timers.append(call_later(*due)) or timers[-1])
    found, aborts = stream()
    found.listen(Patience(first_token=0.05, token=0.05))
    found.end()
    assert [timer.cancelled() for timer in timers] == [True]
    assert (aborts, await found.read()) == ([], [])
