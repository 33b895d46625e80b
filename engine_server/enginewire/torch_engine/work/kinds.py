"""The kinds of work that a request can be: what each does with its rows, and how it ends.

A request has one `Work` of its own while it is alive. Knows nothing about batches, threads or messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from enginewire.server.failures import StepFailed, internal
from enginewire.torch_engine.requests.candidates import Candidate
from enginewire.torch_engine.requests.params import BeamRules
from enginewire.torch_engine.requests.pooling import Pooling
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.scores import RowLogprobs
from enginewire.torch_engine.requests.sequence import BestOf, Finish, Request, Sequence
from enginewire.torch_engine.runner.batch import Runner
from enginewire.torch_engine.runner.vectors import NO_SUMS, finish_vector
from enginewire.torch_engine.sampling.beam_search import BeamSearch, share_out
from enginewire.torch_engine.sampling.logits_rules import nothing_left
from enginewire.torch_engine.sampling.sampler import Row
from enginewire.torch_engine.work.live import LiveRequests


class Work(ABC):
    """What becomes of one request."""

    def __init__(self, request: Request, live: LiveRequests) -> None:
        self._request = request
        self._live = live
        self._outbox = live.outbox

    @abstractmethod
    def take(self, grant: Scheduled, row: Row) -> None:
        """Go by what a step has computed for a sequence. Raises the EngineError that ends the request."""

    def cancel(self) -> None:
        """End every unfinished choice as cancelled."""
        for sequence in self._request.unfinished:
            self._live.end(sequence)
            self._outbox.end(sequence, None)


class Generation(Work):
    """Every row is a token of a choice, and every choice ends by itself."""

    def take(self, grant: Scheduled, row: Row) -> None:
        """Add the token; tell it."""
        sequence = grant.sequence
        if not sequence.append(row.token_id):
            raise StepFailed("the output left its grammar, or that is too slow to follow")
        self._live.counters.tokens_generated += 1
        if row.logprobs is not None:
            sequence.cum_log_prob += row.logprobs.token
        finish = sequence.finish()
        if finish is None:
            self._tell(sequence, row.logprobs)
        else:
            self._live.end(sequence)
            self._tell_end(sequence, finish, row.logprobs)

    def _tell(self, sequence: Sequence, logprobs: RowLogprobs | None) -> None:
        self._outbox.token(sequence, logprobs)

    def _tell_end(self, sequence: Sequence, finish: Finish, logprobs: RowLogprobs | None) -> None:
        self._outbox.end(sequence, finish, 1, logprobs)


class Selection(Generation):
    """The choices are candidates: nothing is told before all have ended, and then only the best of them."""

    def __init__(self, request: Request, live: LiveRequests, rules: BestOf) -> None:
        super().__init__(request, live)
        self._rules = rules
        self._rows: dict[Sequence, list[RowLogprobs]] = {}
        self._ends: dict[Sequence, Finish] = {}

    def _tell(self, sequence: Sequence, logprobs: RowLogprobs | None) -> None:
        if logprobs is not None and self._rules.with_logprobs:
            self._rows.setdefault(sequence, []).append(logprobs)

    def _tell_end(self, sequence: Sequence, finish: Finish, logprobs: RowLogprobs | None) -> None:
        self._tell(sequence, logprobs)
        self._ends[sequence] = finish
        if not self._request.unfinished:
            # Among equals the first one, so that a result can be repeated.
            ranked = sorted(self._request.sequences, key=lambda each: -each.cum_log_prob)
            self._outbox.choices(self._request, list(map(self._candidate, ranked[: self._rules.n])))

    def _candidate(self, sequence: Sequence) -> Candidate:
        rows = tuple(self._rows.get(sequence, ()))
        return Candidate(sequence.cum_log_prob, sequence.output_token_ids, self._ends[sequence], rows)

    def cancel(self) -> None:
        """None of the candidates is returned."""
        self._live.end_all(self._request)
        self._outbox.choices(self._request, [CANCELLED] * self._rules.n)


class Search(Work):
    """The choices are beams: a row says how one may go on, and the last one in a step what all of them do."""

    def __init__(self, request: Request, live: LiveRequests, rules: BeamRules) -> None:
        super().__init__(request, live)
        self._search = BeamSearch(rules)

    def take(self, grant: Scheduled, row: Row) -> None:
        """Note how a beam may go on; the last beam of its request to know lets all of them go on."""
        sequence = grant.sequence
        assert sequence.beam is not None, "only beams are searched"
        sequence.beam = replace(sequence.beam, continuations=row.continuations)
        beams = self._request.unfinished
        if all(beam.is_idle for beam in beams):
            self._advance(beams)

    def _advance(self, beams: list[Sequence]) -> None:
        successors = self._search.advance(beams)
        if successors:
            restarted, left_over = share_out(successors, beams)
            for beam in restarted:
                self._live.scheduler.restart(beam)
            for beam in left_over:
                self._live.end(beam)
        elif self._search.is_short:
            raise nothing_left(self._request, "further hypothesis")
        else:
            self._end(self._search.hypotheses[: self._search.rules.n])

    def cancel(self) -> None:
        """A search that is cut short has no result."""
        self._end([CANCELLED] * self._search.rules.n)

    def _end(self, chosen: list[Candidate]) -> None:
        self._live.end_all(self._request)
        self._live.counters.tokens_generated += sum(len(each.token_ids) for each in chosen)
        self._outbox.choices(self._request, chosen)


class HandOff(Work):
    """The prompt is computed for another engine, which computes its last token again for the logits."""

    def __init__(self, request: Request, live: LiveRequests, runner: Runner) -> None:
        super().__init__(request, live)
        self._runner = runner

    def take(self, grant: Scheduled, row: Row) -> None:
        """The prompt is computed: its KV is the result, and the row nobody's."""
        try:
            payload = self._runner.read_kv(grant.sequence, len(self._request.prompt_token_ids) - 1)
        except Exception as error:  # torch raises anything; it must stay in this request
            raise internal("the hand-off could not be made", error) from error
        self._live.end(grant.sequence)
        self._outbox.hand_over(self._request, payload)


class InputVector(Work):
    """A row is a share of the vector, which is all of them added up."""

    def __init__(self, request: Request, live: LiveRequests, pooling: Pooling) -> None:
        super().__init__(request, live)
        self._pooling = pooling
        self._sum = NO_SUMS

    def take(self, grant: Scheduled, row: Row) -> None:
        """Add the share; the vector ends with the last token."""
        sequence = grant.sequence
        assert row.share is not None, "requests that embed are pooled"
        if not sequence.block_table:  # preempted since: it begins again, and this at zero
            return
        is_first = sequence.num_computed_tokens == grant.num_tokens
        self._sum = row.share if is_first else self._sum + row.share
        if sequence.num_pending_tokens == 0:
            vector = finish_vector(self._sum, self._pooling)
            if vector is None:
                raise StepFailed("the model computes no finite vector")
            self._live.end(sequence)
            self._outbox.vector(self._request.context, vector)


CANCELLED = Candidate(0.0, [], None)


def work_of(request: Request, live: LiveRequests, runner: Runner) -> Work:
    """What a request asks for."""
    if request.pooling:
        return InputVector(request, live, request.pooling)
    if request.hands_over:
        return HandOff(request, live, runner)
    if request.beams:
        return Search(request, live, request.beams)
    if request.best_of:
        return Selection(request, live, request.best_of)
    return Generation(request, live)
