"""Two data-parallel ranks of vLLM behind one server."""

from __future__ import annotations

import os

import grpc
import psutil
import pytest

from enginewire import v1 as pb
from enginewire.server.demo_model import questions
from tests.backend.our_processes import load_of, until
from tests.vllm_engine.live.conftest import VLLM, Server, Start
from tests.vllm_engine.live.test_answers import PATIENCE_SECONDS, connection, outputs, request, tokens_of

RANKS = 2


@pytest.fixture(scope="module")
def ranks(start: Start) -> Server:
    """The demo model twice, each with its own cache."""
    cores = sorted(os.sched_getaffinity(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
        server = start(*VLLM[:-1], f"--engine-args=--enforce-eager --data-parallel-size {RANKS}")
    server.wait_ready()
    return server


def at(rank: int, question: str) -> pb.PreprocessedRequest:
    made = request(question)
    made.routing.dp_rank = rank
    return made


def test_it_says_how_many_there_are(ranks):
    with connection(ranks) as channel:
        config = pb.DiscoveryServiceStub(channel).GetEngineInfo(pb.GetEngineInfoRequest()).config
        sources = pb.KvServiceStub(channel).GetKvEventSources(pb.GetKvEventSourcesRequest()).sources
    assert (config.data_parallel_size, config.capabilities.data_parallel) == (RANKS, True)
    assert [source.dp_rank for source in sources] == list(range(RANKS))
    load = load_of(ranks.target)
    assert [rank.kv_blocks_total for rank in load.ranks] == RANKS * [config.total_kv_blocks]
    assert load.kv_blocks_total == RANKS * config.total_kv_blocks


def test_both_ranks_answer_as_one_engine_does(ranks, vllm):
    for question in list(questions())[::60]:
        alone = tokens_of(outputs(vllm, request(question)))
        assert [tokens_of(outputs(ranks, at(rank, question))) for rank in range(RANKS)] == RANKS * [alone]


def test_a_prompt_is_cached_where_it_was_computed(ranks):
    text = "one two three four five six seven eight " * 20

    def cached(rank: int) -> int:
        usage = outputs(ranks, at(rank, text))[-1].completion_usage
        return usage.prompt_tokens_details.cached_tokens

    assert [cached(1), cached(0)] == [0, 0]
    assert min(cached(1), cached(0)) > 0


def test_events_of_the_cache_come_from_the_rank_that_was_asked(ranks):
    with connection(ranks) as channel:
        events = pb.KvServiceStub(channel).SubscribeKvEvents(
            pb.SubscribeKvEventsRequest(dp_rank=1), timeout=PATIENCE_SECONDS
        )
        until(lambda: load_of(ranks.target).running == 0)
        outputs(ranks, at(1, "ten nine eight seven six five four three " * 20))
        stored = next(event for message in events for event in message.events if event.HasField("stored"))
        events.cancel()
    assert stored.stored.token_ids


def test_a_rank_that_is_not_there_is_refused(ranks):
    with pytest.raises(grpc.RpcError) as caught:
        outputs(ranks, at(RANKS, "Who are you?"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "routing.dp_rank" in caught.value.details()


def test_the_death_of_one_rank_is_the_end(ranks):
    family = ranks.family()
    cores = [each for each in family if "EngineCore" in " ".join(each.cmdline())]
    assert len(cores) == RANKS
    cores[1].kill()
    assert ranks.process.wait(PATIENCE_SECONDS) == 70, ranks.log()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_SECONDS)
    assert alive == []
