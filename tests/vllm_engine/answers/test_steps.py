"""What steps of vLLM mean to callers. The outputs here have vLLM's fields, and are plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import Cancelled, Draining, InvalidRequest, StepFailed
from enginewire.vllm_engine.answers.answer import Answer
from enginewire.vllm_engine.answers.steps import OUT_OF_ROOM, PREEMPTED, SCHEDULED, STOPPED, Steps

EOS, STOP, ABORTED = 2, 9, 2


@dataclass
class Rows:
    """vLLM's `LogprobsLists`, and its `LogprobsTensors` by the other name of the ranks."""

    logprob_token_ids: np.ndarray
    logprobs: np.ndarray
    sampled_token_ranks: np.ndarray

    @property
    def selected_token_ranks(self) -> np.ndarray:
        return self.sampled_token_ranks


@dataclass
class Event:
    type: int
    timestamp: float = 5.0


@dataclass
class Prefill:
    num_cached_tokens: int


@dataclass
class Output:
    """vLLM's `EngineCoreOutput`."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: int | None = None
    new_logprobs: Rows | None = None
    new_prompt_logprobs_tensors: Rows | None = None
    events: list[Event] | None = None
    prefill_stats: Prefill | None = None
    pooling_output: np.ndarray | None = None


@dataclass
class Lookups:
    queries: int = 0
    hits: int = 0


@dataclass
class Drafts:
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass
class Stats:
    num_running_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: Lookups = field(default_factory=Lookups)
    spec_decoding_stats: Drafts | None = None


@dataclass
class Made:
    """vLLM's `EngineCoreOutputs`."""

    outputs: list[Output] = field(default_factory=list)
    scheduler_stats: Stats | None = None
    engine_index: int = 0


class Scene:
    """Requests under way, named 1, 2, … in the order of their coming."""

    def __init__(self) -> None:
        self.steps = Steps(kv_blocks=10)
        self._serial = 0

    def request(
        self,
        n: int = 1,
        priority: int = 0,
        allowed: tuple[int, ...] = (),
        bad_word: tuple[int, ...] = (),
        rank: int = 0,
        **output: int,
    ) -> Answer:
        self._serial += 1
        message = pb.PreprocessedRequest(token_ids=[5, 6, 7])
        message.sampling_options.n = n
        message.output_options.CopyFrom(pb.OutputOptions(**output))
        message.sampling_options.allowed_token_ids[:] = allowed
        if bad_word:
            message.sampling_options.bad_words_token_ids.add(token_ids=bad_word)
        message.stop_conditions.min_tokens = 2 if allowed else 0
        context = GenerateContext(f"r{self._serial}")
        urgency = (priority, float(self._serial), self._serial)
        answer = Answer.of(message, context, frozenset({EOS}), frozenset({STOP}), urgency)
        answer.rank = rank
        self.steps.add(answer)
        return answer

    def embedding(self, *lengths: int) -> Answer:
        self._serial += 1
        inputs = [pb.TokenSequence(token_ids=[5] * length) for length in lengths]
        message = pb.PreprocessedEmbeddingRequest(token_ids=inputs)
        urgency = (0, float(self._serial), self._serial)
        answer = Answer.of_inputs(message, GenerateContext(f"r{self._serial}"), urgency)
        self.steps.add(answer)
        return answer

    def step(self, *outputs: Output, running: int = 1, usage: float = 0.0, rank: int = 0) -> StepOutputs:
        made, self.orphans = self.steps.take(Made([*outputs], Stats(running, usage), rank))
        return made


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_bare_tokens_of_a_step_travel_in_columns(scene):
    first, second = scene.request(), scene.request(n=2)
    scene.step(Output("1.0", [11]))
    made = scene.step(Output("1.0", [12, 13]), Output("2.1", [14]))
    assert made.contexts == [first.context, first.context, second.context]
    assert (made.indexes, made.positions, made.token_ids) == ([0, 0, 1], [1, 2, 0], [12, 13, 14])
    assert (made.outputs, made.failures, made.step) == ([], [], 2)


@pytest.mark.parametrize(
    ("last", "reason", "finish", "match"),
    [
        (EOS, STOPPED, pb.FINISH_REASON_EOS, None),
        (STOP, STOPPED, pb.FINISH_REASON_STOP, STOP),
        (EOS, OUT_OF_ROOM, pb.FINISH_REASON_LENGTH, None),
    ],
)
def test_a_choice_ends_as_the_contract_calls_it(scene, last, reason, finish, match):
    scene.request()
    scene.step(Output("1.0", [11]))
    [(_, output)] = scene.step(Output("1.0", [last], reason)).outputs
    assert (output.finish_reason, list(output.token_ids), output.first_output_position) == (finish, [last], 1)
    assert (output.stop_match.token_id if output.HasField("stop_match") else None) == match
    assert scene.steps.answers == []


@pytest.mark.parametrize(("last", "finish"), [(EOS, pb.FINISH_REASON_EOS), (STOP, pb.FINISH_REASON_STOP)])
def test_a_choice_of_nothing_but_stops_ends_with_one_where_vllm_runs_out_of_room(scene, last, finish):
    scene.request(allowed=(EOS, STOP))
    scene.step(Output("1.0", [STOP]))
    [(_, output)] = scene.step(Output("1.0", [last], OUT_OF_ROOM)).outputs
    assert output.finish_reason == finish


@pytest.mark.parametrize("chosen", [0, 5])
def test_what_vllm_chooses_where_the_lists_leave_nothing_ends_the_request_with_all_its_choices(scene, chosen):
    answer = scene.request(n=2, allowed=(5,), bad_word=(5, 5))
    assert scene.step(Output("1.0", [5]), Output("1.1", [5])).failures == []
    [(context, failure)] = scene.step(Output("1.0", [chosen])).failures
    assert context is answer.context
    assert isinstance(failure, InvalidRequest)
    assert failure.field == "sampling_options.allowed_token_ids"
    assert (scene.orphans, scene.steps.answers) == (["1.0", "1.1"], [])


def test_the_usage_is_on_the_last_end_of_a_request_and_counts_all_of_it(scene):
    scene.request(n=2)
    cached = Prefill(3)
    [(_, early)] = scene.step(Output("1.1", [EOS], STOPPED, prefill_stats=cached)).outputs
    assert not early.HasField("completion_usage")
    scene.step(Output("1.0", [4], prefill_stats=Prefill(0)))
    [(_, last)] = scene.step(Output("1.0", [5], OUT_OF_ROOM)).outputs
    usage = last.completion_usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 3, 6)
    assert usage.prompt_tokens_details.cached_tokens == 3


def test_a_row_as_wide_as_its_batch_is_cut_to_what_was_asked_for(scene):
    scene.request(logprobs=1)
    rows = Rows(np.array([[7, 8, 9]]), np.array([[-0.5, -1.5, -np.inf]]), np.array([1]))
    [(_, output)] = scene.step(Output("1.0", [7], new_logprobs=rows)).outputs
    assert output.cum_log_probs == -0.5
    assert output.logprobs == pb.Logprobs(
        token_logprobs=[-0.5], token_ranks=[1], top_n=1, top_token_ids=[8], top_logprobs=[-1.5]
    )
    [(_, second)] = scene.step(Output("1.0", [7], OUT_OF_ROOM, new_logprobs=rows)).outputs
    assert second.cum_log_probs == -1.0


def test_a_probability_of_zero_is_a_number(scene):
    scene.request(logprobs=1)
    rows = Rows(np.array([[7, 8]]), np.array([[-np.inf, -np.inf]]), np.array([2]))
    [(_, output)] = scene.step(Output("1.0", [7], new_logprobs=rows)).outputs
    assert list(output.logprobs.token_logprobs) == list(output.logprobs.top_logprobs)
    assert output.logprobs.token_logprobs[0] == pytest.approx(-1e30)


def test_the_prompt_has_its_rows_on_the_first_output(scene):
    scene.request(prompt_logprobs=1)
    rows = Rows(np.array([[6, 1], [7, 1]]), np.array([[-2.0, -1.0], [-3.0, -1.0]]), np.array([4, 5]))
    [(_, output)] = scene.step(Output("1.0", [8], new_prompt_logprobs_tensors=rows)).outputs
    assert list(output.prompt_logprobs.logprobs.token_logprobs) == [-2.0, -3.0]
    assert list(output.prompt_logprobs.logprobs.token_ranks) == [4, 5]
    assert scene.step(Output("1.0", [8])).token_ids == [8]


def test_a_choice_that_vllm_gives_up_takes_its_siblings_along(scene):
    answer = scene.request(n=3)
    scene.step(Output("1.1", [EOS], STOPPED))
    made = scene.step(Output("1.0", [], ABORTED))
    [(context, failure)] = made.failures
    assert context is answer.context
    assert isinstance(failure, StepFailed)
    assert sorted(scene.orphans) == ["1.0", "1.2"]
    assert scene.step(Output("1.2", [4])).token_ids == []


def test_a_cancelled_request_ends_at_once_and_what_is_under_way_is_dropped(scene):
    answer = scene.request(n=2)
    scene.step(Output("1.0", [4]), Output("1.1", [5], OUT_OF_ROOM))
    made = StepOutputs(1)
    assert scene.steps.cancel(answer, made) == ["1.0"]
    [(_, output)] = made.outputs
    assert (output.finish_reason, output.index) == (pb.FINISH_REASON_CANCELLED, 0)
    assert (output.first_output_position, output.completion_usage.completion_tokens) == (1, 2)
    late = scene.step(Output("1.0", [6]))
    assert (late.token_ids, late.outputs) == ([], [])


def test_the_load_is_that_of_the_last_step_and_what_came_since_waits(scene):
    scene.request(n=2)
    scene.step(running=2, usage=0.4)
    scene.request()
    load = scene.steps.current_load()
    assert (load.running, load.waiting, load.waiting_tokens) == (2, 1, 3)
    assert (load.kv_blocks_used, load.kv_blocks_total, load.step) == (4, 10, 1)


def test_choices_run_and_requests_wait(scene):
    """Of the second request one choice runs, and of the third none."""
    scene.request()
    scene.request(n=3)
    scene.request(n=2)
    scene.step(running=2)
    load = scene.steps.current_load()
    assert (load.running, load.waiting, load.waiting_tokens) == (2, 1, 3)


def test_a_request_that_had_to_stop_waits_and_is_not_handed_back(scene):
    kept, stopped = scene.request(), scene.request()
    scene.step(Output("1.0", [4]), Output("2.0", [4]), running=2)
    scene.step(Output("1.0", [4]), running=1)
    assert scene.steps.current_load().waiting == 1
    assert scene.steps.waiting() == []
    assert {kept, stopped} == {*scene.steps.answers}


def test_what_has_ended_since_the_last_step_does_not_run(scene):
    answer = scene.request()
    scene.step(Output("1.0", [4]), running=1)
    scene.steps.fail(answer, Draining("over"), StepOutputs(1))
    load = scene.steps.current_load()
    assert (load.running, load.waiting, load.requests_finished, load.tokens_generated) == (0, 0, 1, 1)


def test_those_wait_that_are_least_urgent_and_have_no_token(scene):
    begun, late, urgent = scene.request(), scene.request(), scene.request(priority=-1)
    scene.step(Output("1.0", [4]), running=2)
    assert scene.steps.waiting() == [late]
    scene.step(Output("1.0", [5]), running=1)
    assert scene.steps.waiting() == [urgent, late]
    assert begun in scene.steps.answers


def test_vllm_says_when_a_request_began_to_run_and_when_it_had_to_stop(scene):
    answer = scene.request()
    events = [Event(SCHEDULED, 7.5), Event(PREEMPTED), Event(SCHEDULED, 9.0)]
    scene.step(Output("1.0", [4], events=events))
    assert answer.context.running_since == 7.5
    assert scene.steps.load.preemptions == 1


def vector(name: str, *numbers: float) -> Output:
    return Output(name, [], STOPPED, pooling_output=np.array(numbers))


async def test_an_answer_is_embedded_when_its_last_vector_has_come(scene):
    answer = scene.embedding(1, 4)
    load = scene.steps.current_load()
    assert (load.waiting, load.waiting_tokens) == (1, 5)
    made = scene.step(vector("1.1", 3.0, 4.0))
    assert not answer.embedded.done()
    assert not answer.is_fresh
    scene.step(vector("1.0", 1.0, 2.0))
    await answer.embedded
    assert [choice.vector for choice in answer.choices] == [[1.0, 2.0], [3.0, 4.0]]
    assert (made.outputs, made.failures, answer in scene.steps) == ([], [], False)


async def test_who_embeds_hears_of_a_failure_and_the_shell_does_not(scene):
    answer, made = scene.embedding(1, 4), StepOutputs(1)
    scene.step(vector("1.0", 1.0))
    assert scene.steps.fail(answer, Draining("over"), made) == ["1.1"]
    with pytest.raises(Draining):
        await answer.embedded
    assert made.failures == []
    other = scene.embedding(1)
    assert scene.step(Output("2.0", [], ABORTED)).failures == []
    with pytest.raises(StepFailed):
        await other.embedded


async def test_a_cancelled_request_to_embed_has_no_outputs(scene):
    answer, made = scene.embedding(1), StepOutputs(1)
    assert scene.steps.cancel(answer, made) == ["1.0"]
    with pytest.raises(Cancelled):
        await answer.embedded
    assert made.outputs == []


async def test_a_vector_that_nobody_awaits_any_more_ends_its_request_all_the_same(scene):
    answer = scene.embedding(1)
    answer.embedded.cancel()
    scene.step(vector("1.0", 1.0))
    assert answer not in scene.steps


@pytest.fixture
def ranks() -> Scene:
    """Two of them, with ten blocks each."""
    made = Scene()
    made.steps = Steps(2, 10)
    return made


def test_a_request_runs_on_the_rank_that_it_names_else_on_the_one_with_the_fewest_choices(ranks):
    assert ranks.steps.rank_for(pb.RoutingHints(dp_rank=1)) == 1
    ranks.request(n=2)
    assert ranks.steps.rank_for(pb.RoutingHints()) == 1
    ranks.request(n=3, rank=1)
    assert ranks.steps.rank_for(pb.RoutingHints()) == 0
    assert ranks.steps.rank_for(pb.RoutingHints(dp_rank=1)) == 1


def test_each_rank_tells_its_own_load_and_both_add_up(ranks):
    for rank in (0, 0, 1):
        ranks.request(rank=rank)
    ranks.step(Output("1.0", [11]), running=1, usage=0.5)
    ranks.step(Output("3.0", [11]), running=1, usage=0.2, rank=1)
    load = ranks.steps.current_load()
    told = [(each.dp_rank, each.running, each.waiting, each.kv_blocks_used) for each in load.ranks]
    assert told == [(0, 1, 1, 5), (1, 1, 0, 2)]
    assert (load.running, load.waiting, load.kv_blocks_used, load.kv_blocks_total) == (2, 1, 7, 20)
    assert [answer.context.request_id for answer in ranks.steps.waiting()] == ["r2"]
    ranks.step(Output("3.0", [EOS], STOPPED), running=0, rank=1)
    assert [each.running for each in ranks.steps.current_load().ranks] == [1, 0]


def test_the_only_rank_is_not_told_apart(scene):
    assert not scene.steps.current_load().ranks


def test_silence_counts_from_when_there_was_something_to_do(ranks, monkeypatch):
    clock = 1000.0
    monkeypatch.setattr("enginewire.vllm_engine.answers.steps.time.monotonic", lambda: clock)
    assert ranks.steps.unheard_for() == 0
    ranks.request()
    assert ranks.steps.unheard_for() == 0
    clock += 7
    ranks.request(rank=1)
    assert ranks.steps.unheard_for() == 7
    ranks.step(Output("1.0", [EOS], STOPPED))
    clock += 5
    assert ranks.steps.unheard_for() == 5
    ranks.step(Output("2.0", [EOS], STOPPED), rank=1)
    clock += 500
    assert ranks.steps.unheard_for() == 0
