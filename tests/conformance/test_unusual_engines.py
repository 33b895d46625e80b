"""Engines that are correct and unlike the usual ones: nothing they do is an alarm."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import CAPABILITIES, Settings
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.running.registry import SHAPE
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.session.run_options import RunOptions
from tests.conformance.judging import judged, statuses
from tests.long import long, long_but


class SmallWindow(Reference):
    """Three blocks and a few tokens."""

    settings = replace(Settings(), context_length=64)


class TinyWindow(Reference):
    """One block."""

    settings = replace(Settings(), context_length=32)


class LeastWindow(Reference):
    """One block, of which a prompt takes half."""

    settings = replace(Settings(), context_length=16)


class OneChoice(Reference):
    """Advertises several choices, and allows one."""

    settings = replace(Settings(), limits={"max_n": 1})


class LittleMemory(Reference):
    """Two windows fill it, a buffer holds two, and how many choices there may be is not said."""

    settings = replace(Settings(), total_blocks=256, buffer_tokens=4096)

    def __init__(self) -> None:
        super().__init__()
        self.config.limits.ClearField("max_n")


class ShortPrompts(Reference):
    """No prompt comes near the end of the window."""

    settings = replace(Settings(), limits={"max_prompt_tokens": 2000})


class MuchMemory(Reference):
    """More long choices fit in than there are slots."""

    settings = replace(Settings(), total_blocks=65536)


class OneSlot(Reference):
    """Where the second choice of a request begins when the first has ended."""

    settings = replace(Settings(), max_num_seqs=1)


class LittleRoom(Reference):
    """Where one request runs and one waits, and the next one is refused."""

    settings = replace(Settings(), max_num_seqs=1, max_queued=1)


class LittleRoomForTokens(Reference):
    """Where one request runs, and few tokens wait."""

    settings = replace(Settings(), max_num_seqs=1, limits={"max_num_queued_tokens": 100})

    def admit(self, job: Job) -> None:
        """Refuse a prompt that is too long for the queue."""
        waiting = sum(len(each.request.token_ids) for each in self.waiting)
        most = self.config.limits.max_num_queued_tokens
        if self.live and waiting + len(job.request.token_ids) > most:
            depth = {"queue_depth": str(waiting), "limit": str(most)}
            reason = pb.ERROR_REASON_QUEUE_FULL
            raise Refusal(reason, "the queue is full", retry_after=0.1, metadata=depth)
        super().admit(job)


class TwoSlots(Reference):
    """Where the third one does."""

    settings = replace(Settings(), max_num_seqs=2)


class SmallVocabulary(Reference):
    """Where prompts that are drawn carelessly are soon the same."""

    settings = replace(Settings(), vocab_size=32)


LATE_SECONDS = 1.5


class EndsSlowReaders(Reference):
    """Soon, and tells its load so late that it has done so before the kit has sent all."""

    settings = replace(Settings(), buffer_tokens=4)

    def has_room(self, job: Job) -> bool:
        if super().has_room(job):
            return True
        self.fail(job, Refusal(pb.ERROR_REASON_SLOW_CONSUMER, "the reader is too slow"))
        return False

    async def get_load(self) -> pb.GetLoadResponse:
        await asyncio.sleep(LATE_SECONDS if self.live else 0)
        return await super().get_load()


COUNT_SECONDS = 0.05


class CountsLate(Reference):
    """What has ended is counted when its slot has been free for a while."""

    not_counted = -100  # it has served others before

    def release(self, job: Job) -> None:
        """Free its slot, and count it later."""
        if self.live.get(job.request_id) is job:
            self.not_counted += 1
            asyncio.get_running_loop().call_later(COUNT_SECONDS, self._count)
        super().release(job)

    def _count(self) -> None:
        self.not_counted -= 1

    def load(self) -> pb.Load:
        """Without those that are not counted yet."""
        load = super().load()
        load.requests_finished -= self.not_counted
        return load


class TwoRanks(Reference):
    """The second one has blocks in its cache, too, of requests that were for nobody in particular."""

    settings = replace(Settings(), capabilities=(*CAPABILITIES, "data_parallel"), ranks=2)
    elsewhere = 40

    async def kv_event_sources(self) -> pb.GetKvEventSourcesResponse:
        """One for each rank."""
        return pb.GetKvEventSourcesResponse(sources=[pb.KvEventSource(dp_rank=rank) for rank in range(2)])

    async def subscribe(
        self, request: pb.SubscribeKvEventsRequest
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        """What the second rank has, a block in each message; of the first one as ever."""
        if request.dp_rank:
            yield pb.SubscribeKvEventsResponse(events=[pb.KvEvent(sequence=9, cleared=pb.KvCacheCleared())])
            for block in range(self.elsewhere):
                size = self.settings.block_size
                stored = pb.KvBlocksStored(block_hashes=[block], block_size=size, token_ids=range(size))
                yield pb.SubscribeKvEventsResponse(events=[pb.KvEvent(sequence=9, stored=stored)])
            await asyncio.Event().wait()
        async for message in super().subscribe(request):
            yield message

    def load(self) -> pb.Load:
        """With what the second rank has."""
        load = super().load()
        load.kv_blocks_cached += self.elsewhere
        return load


class RefusesPromptRows(Reference):
    """Beside `resume`."""

    def validate(self, request: pb.GenerateRequest) -> None:
        """The same."""
        super().validate(request)
        if _resumes_with_prompt_rows(request.request):
            raise invalid("output_options.prompt_logprobs", "comes with resume", 0, "without resume")


class LeavesOutPromptRows(Reference):
    """Beside `resume`."""

    def job(self, request_id: str, request: pb.PreprocessedRequest, deadline: float = math.inf) -> Job:
        """As if it had not asked for them."""
        if _resumes_with_prompt_rows(request):
            request.output_options.ClearField("prompt_logprobs")
        return super().job(request_id, request, deadline)


def _resumes_with_prompt_rows(request: pb.PreprocessedRequest) -> bool:
    return request.HasField("resume") and request.output_options.HasField("prompt_logprobs")


FEW = RunOptions(companies=1, cases=8)
"""What is asked of each of them by `make test`; `make test-long` asks as much as every run of the kit."""


@pytest.mark.parametrize("options", long_but([FEW], [FEW, RunOptions()]), ids=["few", "all"])
@pytest.mark.parametrize(
    ("server", "passes", "says_nothing"),
    [
        pytest.param(TwoRanks, ("KVE-02", "KVE-03", "KVE-05", "KVE-06", "KVE-08"), (), marks=long),
        pytest.param(
            SmallWindow,
            ("PRB-04", "USE-06", "MUX-11", "SAM-05", "KVE-03", "KVE-04", "KVE-08", "WLD-02"),
            (),
            marks=long,
        ),
        pytest.param(
            TinyWindow,
            ("PRB-04", "USE-06", "USE-07", "MUX-08", "MUX-10"),
            ("KVE-03", "KVE-08", "STP-07", "SAM-18/output"),
            marks=long,
        ),
        (
            LeastWindow,
            (
                *SHAPE,
                "LIM-01",
                "LIM-06",
                "LIM-09",
                "MUX-08",
                "MUX-10",
                "RES-04",
                "LOG-01",
                "EMB-05",
                "GDE-02",
            ),
            ("USE-06", "USE-07", "LOG-07", "GDE-01", "KVE-03"),
        ),
        (OneSlot, ("ABO-01", "SEQ-02", "CON-10"), ("SEQ-05", "SEQ-05/cancelled")),
        (LittleRoom, (*SHAPE, "ERR-05"), ("CON-02",)),
        (LittleRoomForTokens, (*SHAPE, "ERR-05/ends", "LIM-10/lists"), ("STR-07", "SAM-11")),
        (TwoSlots, ("ABO-01", "SEQ-05", "SEQ-05/cancelled"), ()),
        pytest.param(OneChoice, ("ABO-01", "INF-09"), ("MUX-01/choices", "RES-08"), marks=long),
        pytest.param(LittleMemory, ("SEQ-01", "BPR-04"), ("BPR-03",), marks=long),
        (ShortPrompts, ("INF-04", "LIM-05", "LIM-08", "LIM-09", "LIM-10", "LIM-12", "MSG-01", "RES-04"), ()),
        (MuchMemory, ("SEQ-05/more-than-slots",), ()),
        (RefusesPromptRows, ("LOG-07", "INF-09/mixed", "INF-09/drawn", "CON-07/mixed"), ()),
        (LeavesOutPromptRows, ("LOG-07", "LOG-07/choices", "LOG-07/long", "LOG-07/multiplexed"), ()),
        (CountsLate, ("INF-13", "INF-13/waiting"), ()),
        pytest.param(EndsSlowReaders, (), ("ERR-16",), marks=long),
        pytest.param(SmallVocabulary, ("PRB-04", "USE-06", "KVE-03", "STP-01", "SAM-07"), (), marks=long),
    ],
)
async def test_a_correct_engine_is_not_blamed(
    server: type[Reference], passes: tuple[str, ...], says_nothing: tuple[str, ...], options: RunOptions
) -> None:
    report = await judged(server, selection=Selection(run=[*passes, *says_nothing]), options=options)
    seen = {key: status for key, status in statuses(report).items() if key in {*passes, *says_nothing}}
    assert {key for key in passes if seen[key] is not Status.PASS} == set(), report.unexpected
    assert list(report.unexpected) == []
    assert {key for key in says_nothing if seen[key] is not Status.NOT_APPLICABLE} == set()


class FullCache(LittleMemory):
    """Once its cache is full it stays so: what one prompt adds takes the place of other blocks at once."""

    def evict(self) -> None:
        while len(self.cache) > self.settings.total_blocks // 2:
            self.remove_block(next(iter(self.cache)))


async def test_an_engine_is_not_blamed_for_a_cache_that_an_earlier_run_has_filled() -> None:
    engine, selection = FullCache(), Selection(run=[f"KVE-0{number}" for number in (3, 4, 5, 7)])
    for _ in range(2):
        report = await judged(lambda: engine, selection=selection)
        assert list(report.unexpected) == []
        assert statuses(report)["KVE-05"] is Status.PASS


PATIENCE = RunOptions(patience=1e-6, companies=0)
"""Every engine is slow for whoever has no patience: the fewest tokens and repetitions there are."""


async def test_a_slow_engine_is_not_asked_for_tokens_that_will_never_be_enough() -> None:
    report = await judged(selection=Selection(run=["SAM-16", *SHAPE, "SAM-07"]), options=PATIENCE)
    [outcome] = [each for each in report.outcomes if each.key == "SAM-16"]
    assert outcome.status is Status.NOT_APPLICABLE
    # Not all four turns at both temperatures.
    assert 4 <= len(outcome.exchanges) < 8


@long
async def test_a_slow_engine_is_asked_for_little_and_the_results_say_so() -> None:
    areas = ["STR-*", "LIM-*", "STP-*", "LOG-*", "RES-*", "SEQ-*", "MUX-*", "INF-09/together", "SAM-0*"]
    report = await judged(selection=Selection(run=areas, skip=["*/drawn", "SAM-07/*"]), options=PATIENCE)
    assert list(report.unexpected) == []
    known = {outcome.key: outcome.message for outcome in report.outcomes if outcome.status is Status.PASS}
    assert known["STR-06"] == "for want of time: answers of at most 4 tokens"
    assert known["STR-01"] == known["STR-06"]
    assert known["LIM-03"] == ""
