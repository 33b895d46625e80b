"""A request that its engine fails, refuses or forgets: what the next engine is told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import CODES_OF_BROKEN_CALLS, Failure
from enginewire.backend.engines.stream import PATIENCE, Patience
from enginewire.backend.replay.retry import RetryBudget, RetryPolicy
from tests.backend.asking import Heard, ask, hear
from tests.backend.hostile import END, PROMPT, HostileEngine, engine_info, event, terminal, tokens
from tests.long import long_but
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

LOST = Failure(14, pb.ERROR_REASON_ENGINE_DEAD, "gone", retryable=True).to_proto()
# What a script does not foresee shall not be tried once more, nor leave a caller waiting.
TOO_OFTEN = Failure(13, pb.ERROR_REASON_INTERNAL, "asked more often than there are scripts").to_proto()
QUICK = RetryPolicy(shortest_backoff=0.001, longest_backoff=0.002, recovery=0.5)
# Whoever failed is left alone for longer than it takes to ask another one.
ELSEWHERE = RetryPolicy(shortest_backoff=PATIENCE_SECONDS, longest_backoff=PATIENCE_SECONDS)


class Lives(HostileEngine):
    """An engine that plays one script per attempt, whatever the request's id."""

    def __init__(self, *scripts: object, **capabilities: bool) -> None:
        info = engine_info()
        info.config.capabilities.MergeFrom(pb.Capabilities(**{"resume": True, "seed": True} | capabilities))
        info.config.capabilities.default_sampling.temperature = 0.0
        super().__init__(info=info)
        self.lives = list(scripts)

    def _script(self, request: pb.GenerateRequest) -> object:
        return self.lives.pop(0) if self.lives else [TOO_OFTEN]

    @property
    def parts(self) -> list[pb.PreprocessedRequest]:
        return [received.generate.request for received in self.received]


@contextlib.asynccontextmanager
async def backend_on(
    folder, vocabulary, *engines, policy=QUICK, multiplexed=True, patience=PATIENCE
) -> AsyncIterator[Backend]:
    for number, engine in enumerate(engines):
        await engine.start(folder / f"life{number}.sock")
    clients = [EngineClient(e.target, multiplexed=multiplexed, patience=patience) for e in engines]
    try:
        async with Endpoints(clients) as endpoints:
            yield Backend(endpoints, vocabulary, retry=policy)
    finally:
        for engine in engines:
            await engine.stop()


@contextlib.asynccontextmanager
async def breaking_proxy(
    target: str, folder: Path, how: str
) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Another way to the engine, and what breaks the connections there are with bytes of its own."""
    writers: list[asyncio.StreamWriter] = []
    to_close: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Task[None]] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_unix_connection(target.removeprefix("unix:"))
        writers.append(writer)
        to_close.extend((writer, upstream[1]))
        tasks.append(asyncio.create_task(forward(reader, upstream[1])))
        tasks.append(asyncio.create_task(forward(upstream[0], writer)))

    def break_them() -> None:
        for writer in writers:
            writer.write(b"\xff" * 64 if how == "no HTTP/2" else b"".join(map(reset, range(1, 40, 2))))
        writers.clear()

    server = await asyncio.start_unix_server(accept, folder / "broken.sock")
    try:
        yield f"unix:{folder / 'broken.sock'}", break_them
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in to_close:
            each.close()


def reset(stream_id: int) -> bytes:
    """RST_STREAM with INTERNAL_ERROR, as proxies say that they have lost what is behind them."""
    return b"\x00\x00\x04\x03\x00" + stream_id.to_bytes(4, "big") + (2).to_bytes(4, "big")


async def heard_of(folder, vocabulary, engine: HostileEngine, request=None, **options) -> Heard:
    policy = options.pop("policy", QUICK)
    async with backend_on(folder, vocabulary, engine, policy=policy) as backend:
        return await hear(backend, request or ask(), **options)


async def test_a_lost_answer_goes_on_where_it_was(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), LOST], [terminal(b"g", 3)])
    heard = await heard_of(socket_folder, vocabulary, engine, request_id="mine")
    assert heard.text() == "pong"
    assert heard.usage() == (len(PROMPT), 4)
    events = [(item.event, item.comment) for item in heard.items if item.data is None]
    assert events == [("migrated", ["1"])]
    first, second = engine.received
    assert not first.generate.request.HasField("resume")
    choice = pb.ResumedChoice(index=0, generated_token_ids=b"pon")
    expected = pb.Resume(choices=[choice], attempt=1, origin_lifetime_id="life")
    assert second.generate.request.resume == expected
    assert first.generate.request_id == "mine"
    assert second.generate.request_id.startswith("mine.2-")


@pytest.mark.parametrize("is_inline", [False, True])
async def test_a_stop_string_across_the_cut_is_found_and_not_shown(
    socket_folder, vocabulary, is_inline: bool
) -> None:
    request = ask(stop_conditions=pb.StopConditions(stop=["on"]))
    engine = Lives([tokens(b"p"), 0.01, tokens(b"o", 1), LOST], [tokens(b"n", 2), 0.01, tokens(b"g", 3), 5.0])
    heard = await heard_of(socket_folder, vocabulary, engine, request, is_inline=is_inline)
    assert heard.text() == "p"
    assert heard.finishes() == {0: pb.FINISH_REASON_STOP}
    assert heard.usage() == (len(PROMPT), 3)


async def test_a_finished_choice_is_not_generated_again(socket_folder, vocabulary) -> None:
    request = ask(sampling_options=pb.SamplingOptions(n=2))
    done = tokens(b"a", finish_reason=pb.FINISH_REASON_LENGTH)
    engine = Lives([done, tokens(b"x", index=1), LOST], [terminal(b"y", 1, index=1, usage=(len(PROMPT), 3))])
    heard = await heard_of(socket_folder, vocabulary, engine, request)
    assert (heard.text(0), heard.text(1)) == ("a", "xy")
    assert [choice.finished for choice in engine.parts[1].resume.choices] == [True, False]


async def test_a_request_that_nobody_saw_anything_of_begins_again(socket_folder, vocabulary) -> None:
    engine = Lives([LOST], [terminal(b"pong")], resume=False)
    heard = await heard_of(socket_folder, vocabulary, engine)
    assert heard.text() == "pong"
    assert all(item.event is None for item in heard.items)
    assert not engine.parts[1].HasField("resume")


CANCELLED = terminal(b"", 3, reason=pb.FINISH_REASON_CANCELLED)


@pytest.mark.parametrize("multiplexed", long_but([True], [True, False]), ids=["multiplexed", "generate"])
@pytest.mark.parametrize("how", ["drains", "is another life", "does not answer"])
async def test_what_an_engine_that_goes_away_has_cancelled_goes_on(
    socket_folder, vocabulary, how: str, multiplexed: bool
) -> None:
    class Leaving(Lives):
        def _script(self, request: pb.GenerateRequest) -> object:
            self.state = pb.ENGINE_STATE_DRAINING if how == "drains" else pb.ENGINE_STATE_READY
            return super()._script(request)

    first, second = Leaving([tokens(b"pon"), CANCELLED, END]), Lives([terminal(b"g", 3), END])
    first.info.engine_lifetime_id = "another" if how == "is another life" else "life"
    first.has_load = how != "does not answer"
    engines, options = (first, second), {"policy": ELSEWHERE, "multiplexed": multiplexed}
    async with backend_on(socket_folder, vocabulary, *engines, **options) as backend:
        heard = await hear(backend, ask())
    assert heard.text() == "pong"
    assert [item.comment for item in heard.items if item.event == "migrated"] == [["1"]]


async def test_what_was_cancelled_in_an_engine_that_stays_is_cancelled(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), CANCELLED])
    heard = await heard_of(socket_folder, vocabulary, engine)
    assert (heard.text(), heard.finishes()) == ("pon", {0: pb.FINISH_REASON_CANCELLED})
    assert len(engine.received) == 1


async def test_an_engine_without_resume_leaves_the_error(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), LOST], resume=False)
    heard = await heard_of(socket_folder, vocabulary, engine)
    assert (heard.text(), heard.failure.reason) == ("pon", pb.ERROR_REASON_ENGINE_DEAD)
    assert len(engine.received) == 1


@pytest.mark.parametrize("name", ["INVALID_REQUEST", "AUTH", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL"])
async def test_what_must_not_be_retried_is_not(socket_folder, vocabulary, name: str) -> None:
    refusal = Failure(3, pb.ErrorReason.Value(f"ERROR_REASON_{name}"), "no", retryable=True)
    engine = Lives([refusal.to_proto()])
    heard = await heard_of(socket_folder, vocabulary, engine)
    assert heard.failure == refusal
    assert len(engine.received) == 1


async def test_there_are_five_attempts_and_no_more(socket_folder, vocabulary) -> None:
    refusal = Failure(8, pb.ERROR_REASON_QUEUE_FULL, "full", retryable=True)
    engine = Lives(*[[refusal.to_proto()]] * 6)
    heard = await heard_of(socket_folder, vocabulary, engine)
    assert heard.failure == refusal
    assert len({received.generate.request_id for received in engine.received}) == 5


async def test_an_engine_is_not_asked_before_the_time_it_named(socket_folder, vocabulary) -> None:
    refusal = Failure(8, pb.ERROR_REASON_QUEUE_FULL, "full", retryable=True, retry_after=0.2)
    engine = Lives([refusal.to_proto()], [terminal(b"pong")])
    began = time.monotonic()
    assert (await heard_of(socket_folder, vocabulary, engine)).text() == "pong"
    assert time.monotonic() - began >= 0.2


async def test_another_engine_is_asked_at_once(socket_folder, vocabulary) -> None:
    refusal = Failure(8, pb.ERROR_REASON_QUEUE_FULL, "full", retryable=True, retry_after=30.0)
    full, free = Lives([refusal.to_proto()]), Lives([terminal(b"pong")])
    async with backend_on(socket_folder, vocabulary, full, free) as backend:
        heard = await hear(backend, ask(), timeout=PATIENCE_SECONDS)
    assert heard.text() == "pong"
    assert (len(full.received), len(free.received)) == (1, 1)


async def test_each_attempt_gets_the_time_that_is_left(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), 0.3, LOST], [terminal(b"g", 3)])
    heard = await heard_of(socket_folder, vocabulary, engine, timeout=PATIENCE_SECONDS)
    assert heard.text() == "pong"
    first, second = (received.timeout for received in engine.received)
    assert second <= first - 0.3


async def test_a_retry_does_not_outlive_the_deadline(socket_folder, vocabulary) -> None:
    refusal = Failure(8, pb.ERROR_REASON_QUEUE_FULL, "full", retryable=True, retry_after=2 * PATIENCE_SECONDS)
    began = time.monotonic()
    engine = Lives([refusal.to_proto()])
    heard = await heard_of(socket_folder, vocabulary, engine, timeout=0.3, policy=RetryPolicy())
    assert heard.failure == refusal
    assert time.monotonic() - began < PATIENCE_SECONDS


async def test_a_request_under_which_engines_die_is_given_up(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"p"), LOST], [tokens(b"o", 1), LOST], [terminal(b"ng", 2)])
    engine.names_life = False
    heard = await heard_of(socket_folder, vocabulary, engine)
    assert heard.text() == "po"
    assert heard.failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    assert not heard.failure.retryable
    assert len(engine.received) == 2


async def test_an_engine_of_another_kind_does_not_go_on(socket_folder, vocabulary) -> None:
    first, second = Lives([tokens(b"pon"), LOST], [terminal(b"g", 3)]), Lives()
    second.info.config.model = "another"
    async with backend_on(socket_folder, vocabulary, first, second) as backend:
        heard = await hear(backend, ask())
    assert heard.text() == "pong"
    assert (len(first.received), len(second.received)) == (2, 0)


class OfAnotherKind(Lives):
    """Serves the same model under another name, and goes on with nothing."""

    def __init__(self, *scripts: object, **capabilities: bool) -> None:
        super().__init__(*scripts, resume=False, **capabilities)
        self.info.engine_name = "another"


async def test_what_nobody_saw_anything_of_begins_at_an_engine_of_another_kind(
    socket_folder, vocabulary
) -> None:
    handed_back = Failure(14, pb.ERROR_REASON_DRAINING, "going", retryable=True).to_proto()
    first, second = Lives([handed_back]), OfAnotherKind([terminal(b"pong")], seed=False)
    async with backend_on(socket_folder, vocabulary, first, second, policy=ELSEWHERE) as backend:
        heard = await hear(
            backend, ask(sampling_options=pb.SamplingOptions(temperature=1.0)), timeout=PATIENCE_SECONDS
        )
    assert heard.text() == "pong"
    # The first one can go on with what has a seed; the second one knows none.
    assert first.parts[0].sampling_options.HasField("seed")
    assert not second.parts[0].sampling_options.HasField("seed")


async def test_prompt_logprobs_that_were_told_are_not_told_by_an_engine_of_another_kind(
    socket_folder, vocabulary
) -> None:
    told = tokens(b"", prompt_logprobs=pb.PromptLogprobs())
    first, second = Lives([told, LOST], [terminal(b"pong")]), OfAnotherKind()
    async with backend_on(socket_folder, vocabulary, first, second) as backend:
        heard = await hear(
            backend, ask(output_options=pb.OutputOptions(prompt_logprobs=1)), timeout=PATIENCE_SECONDS
        )
    assert heard.text() == "pong"
    assert (len(first.received), len(second.received)) == (2, 0)


async def test_a_greedy_answer_goes_on_at_an_engine_of_another_kind_that_can(
    socket_folder, vocabulary
) -> None:
    first, second = OfAnotherKind([tokens(b"pon"), LOST]), Lives([terminal(b"g", 3)])
    async with backend_on(socket_folder, vocabulary, first, second) as backend:
        heard = await hear(
            backend, ask(sampling_options=pb.SamplingOptions(temperature=0.0)), timeout=PATIENCE_SECONDS
        )
    assert heard.text() == "pong"
    assert second.parts[0].resume.choices[0].generated_token_ids == list(b"pon")


async def test_where_no_engine_goes_on_with_a_greedy_answer_its_failure_is_told_at_once(
    socket_folder, vocabulary
) -> None:
    first, second = OfAnotherKind([tokens(b"pon"), LOST]), OfAnotherKind()
    patient = RetryPolicy(recovery=PATIENCE_SECONDS)
    async with backend_on(socket_folder, vocabulary, first, second, policy=patient) as backend:
        heard = await hear(
            backend, ask(sampling_options=pb.SamplingOptions(temperature=0.0)), timeout=PATIENCE_SECONDS
        )
    assert (heard.text(), heard.failure.reason) == ("pon", pb.ERROR_REASON_ENGINE_DEAD)
    assert len(second.received) == 0


async def test_nobody_waits_for_the_return_of_an_engine_that_could_not_go_on(
    socket_folder, vocabulary
) -> None:
    first, second = OfAnotherKind([tokens(b"pon"), asyncio.Event()]), OfAnotherKind()
    # When it may be asked again, it is known to be gone.
    patient = RetryPolicy(recovery=10 * PATIENCE_SECONDS, shortest_backoff=5.0, longest_backoff=5.0)
    heard = Heard()
    request = ask(sampling_options=pb.SamplingOptions(temperature=0.0))
    async with backend_on(socket_folder, vocabulary, first, second, policy=patient) as backend:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for item in backend.generate(request):
                heard.items.append(item)
                await first.stop()
    assert (heard.text(), heard.failure.retryable) == ("pon", True)
    assert len(second.received) == 0


async def test_the_backend_fixes_a_seed_for_what_could_not_go_on_without(socket_folder, vocabulary) -> None:
    request = ask(sampling_options=pb.SamplingOptions(temperature=1.0))
    engine = Lives([tokens(b"pon"), LOST], [terminal(b"g", 3)])
    heard = await heard_of(socket_folder, vocabulary, engine, request)
    assert heard.text() == "pong"
    first, second = (part.sampling_options for part in engine.parts)
    assert first.HasField("seed")
    assert first == second
    assert not request.sampling_options.HasField("seed")


async def test_prompt_logprobs_are_not_asked_for_twice(socket_folder, vocabulary) -> None:
    request = ask(output_options=pb.OutputOptions(prompt_logprobs=1))
    begin = tokens(b"pon", prompt_logprobs=pb.PromptLogprobs())
    engine = Lives([begin, LOST], [terminal(b"g", 3)])
    heard = await heard_of(socket_folder, vocabulary, engine, request)
    assert heard.text() == "pong"
    assert [part.output_options.HasField("prompt_logprobs") for part in engine.parts] == [True, False]


async def test_without_a_policy_the_first_failure_is_the_last(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), LOST])
    heard = await heard_of(socket_folder, vocabulary, engine, policy=None)
    assert (heard.text(), heard.failure.message) == ("pon", "gone")


async def test_a_stream_without_a_terminal_goes_on(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), END], [terminal(b"g", 3), END])
    async with backend_on(socket_folder, vocabulary, engine, multiplexed=False) as backend:
        assert (await hear(backend, ask())).text() == "pong"


async def test_an_engine_that_generated_nothing_is_not_named_as_the_origin(socket_folder, vocabulary) -> None:
    another = pb.Accepted(engine_lifetime_id="another")
    handed_back = Failure(14, pb.ERROR_REASON_DRAINING, "later", retryable=True).to_proto()
    second = [lambda handle: event(handle, accepted=another), handed_back]
    engine = Lives([tokens(b"pon"), LOST], second, [terminal(b"g", 3)])
    assert (await heard_of(socket_folder, vocabulary, engine)).text() == "pong"
    assert [part.resume.origin_lifetime_id for part in engine.parts] == ["", "life", "life"]


async def test_a_caller_can_go_on_with_an_answer_itself(socket_folder, vocabulary) -> None:
    resume = pb.Resume(attempt=2, origin_lifetime_id="a life before")
    resume.choices.add(index=0, generated_token_ids=b"po", cum_log_probs=-1.5)
    resume.choices.add(index=1, generated_token_ids=b"x", finished=True)
    request = ask(sampling_options=pb.SamplingOptions(n=2), resume=resume)
    request.stop_conditions.stop.append("ong")
    engine = Lives([tokens(b"n", 2), LOST], [terminal(b"k", 3, usage=(len(PROMPT), 5))])
    heard = await heard_of(socket_folder, vocabulary, engine, request)
    assert heard.failure is None
    # The backend before had shown "p" and withheld "o".
    assert [output.first_output_position for output in heard.outputs] == [2, 3]
    assert (heard.text(0), heard.text(1), heard.usage()) == ("onk", "", (len(PROMPT), 5))
    first, second = (part.resume for part in engine.parts)
    assert first == resume
    assert (second.attempt, second.origin_lifetime_id) == (3, "life")
    assert list(second.choices[0].generated_token_ids) == list(b"pon")
    assert second.choices[0].cum_log_probs == -1.5
    assert [choice.finished for choice in second.choices] == [False, True]


async def test_a_stop_string_that_began_before_a_callers_resume_is_found(socket_folder, vocabulary) -> None:
    resume = pb.Resume(choices=[pb.ResumedChoice(index=0, generated_token_ids=b"po")], attempt=1)
    request = ask(resume=resume, stop_conditions=pb.StopConditions(stop=["ong"]))
    heard = await heard_of(socket_folder, vocabulary, Lives([tokens(b"ng", 2), 5.0]), request)
    assert (heard.text(), heard.finishes()) == ("", {0: pb.FINISH_REASON_STOP})


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        ([{"index": 1}], "resume.choices[0].index"),
        ([{"index": 0}, {"index": 0}], "resume.choices[1].index"),
        ([{"index": 0, "finished": True}], "resume.choices"),
        ([{"index": 0, "generated_token_ids": b"12345678"}], "resume.choices[0].finished"),
    ],
)
async def test_a_resume_that_no_answer_led_to_is_refused_by_name(
    socket_folder, vocabulary, choices, field: str
) -> None:
    resume = pb.Resume(choices=[pb.ResumedChoice(**choice) for choice in choices], attempt=1)
    heard = await heard_of(socket_folder, vocabulary, Lives(), ask(resume=resume))
    assert (heard.failure.reason, heard.failure.field) == (pb.ERROR_REASON_INVALID_REQUEST, field)


@pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])
async def test_an_answer_that_went_on_is_aborted_by_the_callers_id(
    socket_folder, vocabulary, multiplexed: bool
) -> None:
    engine = Lives([tokens(b"po"), LOST], [tokens(b"n", 2), 60.0])
    async with backend_on(socket_folder, vocabulary, engine, multiplexed=multiplexed) as backend:
        heard = Heard()
        async for item in backend.generate(ask(), request_id="mine"):
            heard.items.append(item)
            if heard.text() == "pon":
                assert backend.activity.abort("mine", "enough") == 1
        await until_true(lambda: engine.aborted[-1:] == [engine.received[1].generate.request_id])
    assert (heard.text(), heard.failure.reason) == ("pon", pb.ERROR_REASON_CANCELLED)
    assert engine.received[1].generate.request_id.startswith("mine.2-")


async def test_what_was_cancelled_by_the_caller_does_not_go_on(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), CANCELLED])
    engine.state = pb.ENGINE_STATE_DRAINING
    heard = Heard()
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        async for item in backend.generate(ask(), request_id="mine"):
            heard.items.append(item)
            await asyncio.sleep(0.2)
            backend.activity.abort("mine", "enough")
    assert all(item.event is None for item in heard.items)
    assert len(engine.received) == 1


async def test_without_a_policy_a_cancelled_choice_is_cancelled(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), CANCELLED])
    engine.state = pb.ENGINE_STATE_DRAINING
    heard = await heard_of(socket_folder, vocabulary, engine, policy=None)
    assert (heard.failure, heard.finishes()) == (None, {0: pb.FINISH_REASON_CANCELLED})


async def test_an_empty_budget_leaves_the_failure(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"pon"), LOST])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        backend.retry_budget = RetryBudget(capacity=0.5)
        heard = await hear(backend, ask())
    assert heard.failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    assert len(engine.received) == 1


async def test_an_engine_that_never_took_the_request_did_not_die_of_it(socket_folder, vocabulary) -> None:
    engine = Lives([LOST], [LOST], [terminal(b"pong"), END])
    async with backend_on(socket_folder, vocabulary, engine, multiplexed=False) as backend:
        backend.engines.all[0].heard(pb.Load(state=pb.ENGINE_STATE_READY, engine_lifetime_id="life"))
        assert (await hear(backend, ask())).text() == "pong"


async def test_a_life_that_is_still_there_was_only_cut_off(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"p"), LOST], [tokens(b"o", 1), LOST], [terminal(b"ng", 2)])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        [endpoint] = backend.engines.all
        endpoint.heard(pb.Load(state=pb.ENGINE_STATE_READY, engine_lifetime_id="life"))
        assert (await hear(backend, ask())).text() == "pong"
        assert endpoint.in_flight == 0


@pytest.mark.parametrize("num_tokens", [4, 6])
async def test_what_a_lost_engine_sent_behind_a_stop_is_not_in_the_usage(
    socket_folder, vocabulary, num_tokens: int
) -> None:
    request = ask(sampling_options=pb.SamplingOptions(n=2), stop_conditions=pb.StopConditions(stop=["b"]))
    begin = [tokens(b"ab"), tokens(b"cd", 2), tokens(b"x", index=1), LOST]
    engine = Lives(begin, [terminal(b"y", 1, index=1, usage=(len(PROMPT), num_tokens))])
    heard = await heard_of(socket_folder, vocabulary, engine, request)
    assert (heard.failure is None) == (num_tokens == 4)


async def test_choices_that_ended_before_a_callers_resume_are_not_counted_again(
    socket_folder, vocabulary
) -> None:
    resume = pb.Resume(choices=[pb.ResumedChoice(index=1, finished=True)], attempt=1)
    request = ask(sampling_options=pb.SamplingOptions(n=2), resume=resume)
    async with backend_on(socket_folder, vocabulary, Lives([terminal(b"pong")])) as backend:
        assert (await hear(backend, request)).failure is None
        totals = backend.activity.totals
    assert +totals.finished == {"length": 1}


@pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])
@pytest.mark.parametrize("begin", [[], [tokens(b"pon")]], ids=["before its first token", "in its middle"])
async def test_a_request_that_its_engine_forgets_goes_on(
    socket_folder, vocabulary, begin: list[object], multiplexed: bool
) -> None:
    engine = Lives([*begin, 60.0], [terminal(b"g", 3) if begin else terminal(b"pong"), END])
    options = {"multiplexed": multiplexed, "patience": Patience(0.2, 0.2)}
    async with backend_on(socket_folder, vocabulary, engine, **options) as backend:
        heard = await hear(backend, ask(), request_id="mine")
        await until_true(lambda: engine.aborted == ["mine"])
    assert (heard.text(), heard.failure) == ("pong", None)


async def test_without_replay_the_caller_is_told_that_the_engine_forgot_it(socket_folder, vocabulary) -> None:
    options = {"policy": None, "patience": Patience(0.0, 0.2)}
    async with backend_on(socket_folder, vocabulary, Lives([tokens(b"po"), 60.0]), **options) as backend:
        heard = await hear(backend, ask())
    assert heard.text() == "po"
    assert heard.failure.message == "the engine has sent nothing about the request for 0.2 s"
    assert (heard.failure.reason, heard.failure.retryable) == (pb.ERROR_REASON_STREAM_INCOMPLETE, True)


async def test_a_forgotten_request_does_not_count_as_a_death(socket_folder, vocabulary) -> None:
    engine = Lives([60.0], [60.0], [60.0], [terminal(b"pong")])
    async with backend_on(socket_folder, vocabulary, engine, patience=Patience(0.1, 0.0)) as backend:
        assert (await hear(backend, ask())).text() == "pong"


@pytest.mark.parametrize("broken", ["no HTTP/2", "a reset"])
@pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])
async def test_an_answer_goes_on_when_its_bytes_are_broken_on_the_way(
    socket_folder, vocabulary, broken: str, multiplexed: bool
) -> None:
    engine = Lives([tokens(b"pon"), 0.5, terminal(b"g", 3)], [terminal(b"g", 3), END])
    async with (
        backend_on(socket_folder, vocabulary, engine, multiplexed=multiplexed) as direct,
        breaking_proxy(engine.target, socket_folder, broken) as (target, break_it),
        Endpoints([EngineClient(target, multiplexed=multiplexed)]) as endpoints,
    ):
        backend = Backend(endpoints, direct.vocabulary, retry=QUICK)
        heard = Heard()
        async for item in backend.generate(ask()):
            heard.items.append(item)
            if heard.text() == "pon":
                break_it()
    assert (heard.text(), heard.failure) == ("pong", None)
    assert len(engine.received) == 2


@pytest.mark.parametrize("code", sorted(CODES_OF_BROKEN_CALLS, key=str))
async def test_an_engine_that_is_lost_while_it_is_asked_who_it_is_costs_no_request(
    socket_folder, vocabulary, code: grpc.StatusCode
) -> None:
    class LostMeanwhile(Lives):
        async def _info(self, data: bytes, call: grpc.aio.ServicerContext) -> bytes:
            # As gRPC itself says of bytes that are no TLS, and of calls that were reset.
            await call.abort(code, "Stream removed")

    engines = LostMeanwhile(), Lives([terminal(b"pong")])
    async with backend_on(socket_folder, vocabulary, *engines, policy=ELSEWHERE) as backend:
        heard = await hear(backend, ask())
    assert (heard.text(), heard.failure) == ("pong", None)
