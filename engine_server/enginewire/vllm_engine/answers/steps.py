"""From what one step of vLLM made to one `StepOutputs`.

Reads vLLM's `EngineCoreOutputs` by the fields named here and imports nothing of it. Lives on the event loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from enginewire import v1 as pb
from enginewire.server.engines.interface import StepOutputs
from enginewire.server.failures import Cancelled, EngineError, StepFailed
from enginewire.vllm_engine.answers.answer import Answer, Choice
from enginewire.vllm_engine.answers.logprobs import logprobs_of

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.outputs import LogprobsLists, LogprobsTensors

STOPPED: Final = 0
OUT_OF_ROOM: Final = 1
"""Two of vLLM's reasons to finish, as its `FinishReason` numbers them; every other one is a failure."""
SCHEDULED: Final = 2
PREEMPTED: Final = 3
"""Two of its events, as `EngineCoreEventType` numbers them."""


class Steps:
    """The requests that vLLM works for, and what its steps do to them.

    `ranks` are its data-parallel ranks, with the numbers that each one has told last, and `counts` those that
    it makes of its steps, by the names of its metrics.
    """

    def __init__(self, num_ranks: int = 1, kv_blocks: int = 0) -> None:
        """`kv_blocks` are those of each rank."""
        self.load = pb.Load(kv_blocks_total=num_ranks * kv_blocks)
        self.ranks = [pb.RankLoad(dp_rank=rank, kv_blocks_total=kv_blocks) for rank in range(num_ranks)]
        self.counts: list[Counter[str]] = [Counter() for _ in self.ranks]
        self._num_choices = [0] * num_ranks
        self._heard_at = [0.0] * num_ranks
        self._live: dict[str, Choice] = {}
        self._answers: dict[Answer, None] = {}

    @property
    def answers(self) -> list[Answer]:
        """Those that have not ended, in the order in which they came."""
        return list(self._answers)

    def __contains__(self, answer: Answer) -> bool:
        """It has not ended."""
        return answer in self._answers

    def forget_counts(self) -> None:
        """Begin counting at zero."""
        self.load = pb.Load(kv_blocks_total=self.load.kv_blocks_total)
        for counts in self.counts:
            counts.clear()

    def add(self, answer: Answer) -> None:
        """From now on, outputs of its choices are known."""
        if not self._num_choices[answer.rank]:
            self._heard_at[answer.rank] = time.monotonic()
        self._num_choices[answer.rank] += len(answer.choices)
        self._answers[answer] = None
        self._live.update((choice.name, choice) for choice in answer.choices)

    def rank_for(self, routing: pb.RoutingHints) -> int:
        """The one that was asked for, else the one with the fewest choices."""
        if routing.HasField("dp_rank"):
            return routing.dp_rank
        return min(range(len(self.ranks)), key=self._num_choices.__getitem__)

    def unheard_for(self) -> float:
        """Seconds of silence of a rank that has something to do, the longest."""
        now = time.monotonic()
        silent = (now - at for at, num in zip(self._heard_at, self._num_choices, strict=True) if num)
        return max(silent, default=0.0)

    def waiting(self) -> list[Answer]:
        """Requests that have produced nothing and are not being computed, the most urgent first."""
        return [answer for answer in self._not_running() if answer.is_fresh]

    def _not_running(self) -> list[Answer]:
        """Requests without a choice that is being computed: those that wait, and those that were preempted.

        vLLM says how many choices run, not which: those that have begun, then those that are most urgent.
        """
        places, found = [rank.running for rank in self.ranks], list[Answer]()
        for answer in sorted(self._answers, key=lambda answer: (answer.is_fresh, answer.urgency)):
            if places[answer.rank] <= 0:
                found.append(answer)
            places[answer.rank] -= len(answer.unfinished)
        return found

    def current_load(self) -> pb.Load:
        """After vLLM's last step. What has come since then waits; what has ended since then does not run.

        Choices run, and requests wait.
        """
        load = pb.Load()
        load.CopyFrom(self.load)
        waiting = self._not_running()
        for rank, num_choices in zip(self.ranks, self._num_choices, strict=True):
            told = load.ranks.add()
            told.CopyFrom(rank)
            told.running = min(rank.running, num_choices)
            told.waiting = sum(answer.rank == rank.dp_rank for answer in waiting)
        load.running = sum(rank.running for rank in load.ranks)
        load.kv_blocks_used = sum(rank.kv_blocks_used for rank in load.ranks)
        load.waiting = len(waiting)
        load.waiting_tokens = sum(answer.prompt_tokens for answer in waiting)
        if len(self.ranks) == 1:
            load.ClearField("ranks")
        return load

    def cancel(self, answer: Answer, outputs: StepOutputs) -> list[str]:
        """End every open choice as cancelled; returns what vLLM calls them."""
        if answer.embedded is not None:
            return self.fail(answer, Cancelled("the request was cancelled"), outputs)
        names = self._forget(answer)
        outputs.outputs += [(answer.context, output) for output in answer.cancel()]
        return names

    def fail(self, answer: Answer, failure: EngineError, outputs: StepOutputs) -> list[str]:
        """End a whole request with a failure; returns what vLLM calls its open choices."""
        names = self._forget(answer)
        if answer.embedded is None:
            outputs.failures.append((answer.context, failure))
        elif not answer.embedded.done():
            answer.embedded.set_exception(failure)
        return names

    def take(self, made: EngineCoreOutputs) -> tuple[StepOutputs, list[str]]:
        """What a step means to callers, and the choices that vLLM is to end: siblings of one that failed."""
        self.load.step += 1
        self._heard_at[made.engine_index] = time.monotonic()
        step, orphans = StepOutputs(self.load.step), list[str]()
        for each in made.outputs:
            choice = self._live.get(each.request_id)
            if choice is not None:  # else it was ended while it was under way
                orphans += self._take(choice, each, step)
        self._note(made)
        return step, orphans

    def _take(self, choice: Choice, each: EngineCoreOutput, step: StepOutputs) -> list[str]:
        if each.events:
            self._take_events(choice, each)
        if each.prefill_stats is not None and choice.answer.cached_tokens is None:
            choice.answer.cached_tokens = each.prefill_stats.num_cached_tokens
        if (lists := choice.answer.lists) is not None and not choice.keeps(lists, each.new_token_ids):
            return self.fail(choice.answer, lists.nothing_left(), step)
        if each.finish_reason is None and each.new_logprobs is None:
            if each.new_prompt_logprobs_tensors is None:
                self._take_tokens(choice, each.new_token_ids, step)
                return []
        elif each.finish_reason is not None and each.finish_reason not in (STOPPED, OUT_OF_ROOM):
            return self.fail(choice.answer, StepFailed("vLLM ended the request with an error"), step)
        if each.pooling_output is not None:
            self._take_vector(choice, each.pooling_output.tolist())
            return []
        step.outputs.append((choice.answer.context, self._output(choice, each)))
        return []

    def _take_tokens(self, choice: Choice, token_ids: Sequence[int], step: StepOutputs) -> None:
        """The hot path: nothing but appends for bare tokens."""
        for token_id in token_ids:
            step.contexts.append(choice.answer.context)
            step.indexes.append(choice.index)
            step.positions.append(choice.num_tokens)
            step.token_ids.append(token_id)
            choice.num_tokens += 1
        self.load.tokens_generated += len(token_ids)

    def _take_vector(self, choice: Choice, vector: Sequence[float]) -> None:
        """The end of an input that is embedded."""
        self._drop(choice)
        choice.vector, choice.is_finished = vector, True
        answer = choice.answer
        if not answer.unfinished:
            self._forget(answer)
            assert answer.embedded is not None
            if not answer.embedded.done():
                answer.embedded.set_result(None)

    def _output(self, choice: Choice, each: EngineCoreOutput) -> pb.LLMEngineOutput:
        token_ids = each.new_token_ids
        output = choice.output(token_ids)
        self.load.tokens_generated += len(token_ids)
        if each.new_logprobs is not None:
            output.logprobs.CopyFrom(_rows(each.new_logprobs, choice.answer.num_logprobs))
            choice.cum_log_prob += sum(output.logprobs.token_logprobs)
            output.cum_log_probs = choice.cum_log_prob
        if each.new_prompt_logprobs_tensors is not None:
            output.prompt_logprobs.logprobs.CopyFrom(_prompt_rows(each.new_prompt_logprobs_tensors))
        if each.finish_reason is not None:
            is_stop = each.finish_reason == STOPPED or choice.answer.ends_with_any
            self._end(choice, output, token_ids[-1] if is_stop else None)
        return output

    def _end(self, choice: Choice, output: pb.LLMEngineOutput, stop: int | None) -> None:
        self._drop(choice)
        if stop is None:
            choice.end(output, pb.FINISH_REASON_LENGTH)
        elif stop in choice.answer.end_of_sequence:
            choice.end(output, pb.FINISH_REASON_EOS)
        else:
            choice.end(output, pb.FINISH_REASON_STOP, stop)
        if not choice.answer.unfinished:
            self._forget(choice.answer)

    def _forget(self, answer: Answer) -> list[str]:
        """Take an answer out; returns what vLLM calls its open choices."""
        if answer.timer is not None:
            answer.timer.cancel()
        del self._answers[answer]
        self.load.requests_finished += 1
        for choice in answer.unfinished:
            self._drop(choice)
        return [choice.name for choice in answer.unfinished]

    def _drop(self, choice: Choice) -> None:
        del self._live[choice.name]
        self._num_choices[choice.answer.rank] -= 1

    def _take_events(self, choice: Choice, each: EngineCoreOutput) -> None:
        for event in each.events:
            if event.type == SCHEDULED and choice.answer.context.running_since is None:
                # The clock is the machine's, the same in every process.
                choice.answer.context.running_since = event.timestamp
            self.load.preemptions += event.type == PREEMPTED

    def _note(self, made: EngineCoreOutputs) -> None:
        stats = made.scheduler_stats
        if stats is not None:
            rank, counts = self.ranks[made.engine_index], self.counts[made.engine_index]
            rank.running = stats.num_running_reqs
            rank.kv_blocks_used = round(stats.kv_cache_usage * rank.kv_blocks_total)
            counts["prefix_cache_queries"] += stats.prefix_cache_stats.queries
            counts["prefix_cache_hits"] += stats.prefix_cache_stats.hits
            if (drafts := stats.spec_decoding_stats) is not None:
                counts["spec_decode_num_drafts"] += drafts.num_drafts
                counts["spec_decode_num_draft_tokens"] += drafts.num_draft_tokens
                counts["spec_decode_num_accepted_tokens"] += drafts.num_accepted_tokens


def _rows(made: LogprobsLists, top_n: int) -> pb.Logprobs:
    # A row is as wide as the widest of its batch.
    ids, values = made.logprob_token_ids.tolist(), made.logprobs.tolist()
    return logprobs_of(ids, values, made.sampled_token_ranks.tolist(), top_n)


def _prompt_rows(made: LogprobsTensors) -> pb.Logprobs:
    ids, values = made.logprob_token_ids.tolist(), made.logprobs.tolist()
    return logprobs_of(ids, values, made.selected_token_ranks.tolist(), made.logprob_token_ids.shape[1] - 1)
