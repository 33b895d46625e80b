"""Servers that export something else than what happens."""

from __future__ import annotations

from itertools import count

from enginewire import v1 as pb
from enginewire.conformance.mutants import changed, mutant
from enginewire.conformance.reference.capabilities.embeddings import EmbeddingJob
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference

RUNNING = ("gauge", "engine_requests_running")
WAITING = ("gauge", "engine_requests_waiting")
USAGE = ("gauge", "engine_kv_blocks_used")
FINISHED = ("counter", "engine_requests_finished_total")
TOKENS = ("counter", "engine_generation_tokens_total")


@mutant("metrics_ranks_change", kills=("MET-01", "INF-03", "INF-03/after-load"))
class MetricsRanksChange(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._answers = count()

    async def info(self) -> pb.GetEngineInfoResponse:
        info = await super().info()
        info.config.metrics_ranks[:] = [next(self._answers)]
        return info


@changed(Reference.engine_config, "metrics_of_other_ranks", kills="MET-01")
def metrics_of_other_ranks(config: pb.EngineConfig) -> None:
    config.metrics_ranks[:] = [0, 1]


@mutant("gauge_stuck", kills="MET-02")
class GaugeStuck(Reference):
    def metrics(self) -> dict[tuple[str, str], float]:
        metrics = super().metrics()
        if not self.running and metrics[FINISHED]:
            metrics[RUNNING] = 1
        return metrics


@mutant("gauge_keeps_its_peak", kills="MET-02")
class GaugeKeepsItsPeak(Reference):
    """What was in use at most, of what was seen by those who asked."""

    def metrics(self) -> dict[tuple[str, str], float]:
        self._most = max(self._most, self.load().kv_blocks_used)
        return {**super().metrics(), USAGE: self._most}

    _most = 0.0


@mutant("counter_falls", kills="MET-02")
class CounterFalls(Reference):
    def metrics(self) -> dict[tuple[str, str], float]:
        return {**super().metrics(), FINISHED: -self.counters.requests_finished}


class _Unbegun(Reference):
    """Notes who left the queue without having begun, if `counts` says so."""

    left = 0

    def release(self, job: Job) -> None:
        waits = self.live.get(job.request_id) is job and not job.is_running
        self.left += waits and self.counts()
        super().release(job)

    def counts(self) -> bool:
        return True

    def metrics(self) -> dict[tuple[str, str], float]:
        metrics = super().metrics()
        return {**metrics, WAITING: metrics[WAITING] + self.left}


@mutant("who_never_began_waits_for_ever", kills="MET-02")
class WhoNeverBeganWaitsForEver(_Unbegun):
    """As where the beginning alone takes a request out of those that wait."""


@mutant("who_leaves_a_full_engine_waits_for_ever", kills="MET-03")
class WhoLeavesAFullEngineWaitsForEver(_Unbegun):
    """Nothing is wrong as long as there are slots."""

    def counts(self) -> bool:
        return len(self.running) >= self.settings.max_num_seqs


@mutant("running_off", kills="MET-03")
class RunningOff(Reference):
    def metrics(self) -> dict[tuple[str, str], float]:
        return {**super().metrics(), WAITING: 0}


@mutant("embeddings_are_not_exported", kills="MET-03/embeddings")
class EmbeddingsAreNotExported(Reference):
    def metrics(self) -> dict[tuple[str, str], float]:
        is_alone = self.live and all(isinstance(job, EmbeddingJob) for job in self.live.values())
        return {**super().metrics(), **({RUNNING: 0, WAITING: 0} if is_alone else {})}


@mutant("requests_run_once", kills="MET-03")
class RequestsRunOnce(Reference):
    """However many choices they have."""

    def metrics(self) -> dict[tuple[str, str], float]:
        return {**super().metrics(), RUNNING: len(self.running)}


@changed(Reference.metrics, "counter_off", kills="MET-04")
def counter_off(metrics: dict[tuple[str, str], float]) -> None:
    metrics[TOKENS] -= metrics[FINISHED]


@mutant("tokens_count_when_all_have_come", kills="MET-04")
class TokensCountWhenAllHaveCome(Reference):
    """Those of a request that is cut do not count at all."""

    lost = 0

    def abort(self, job: Job) -> None:
        self.lose(job)
        super().abort(job)

    def fail(self, job: Job, failure: Refusal) -> None:
        self.lose(job)
        super().fail(job, failure)

    def lose(self, job: Job) -> None:
        self.lost += sum(len(choice.tokens) - choice.handed_in for choice in job.choices)

    def metrics(self) -> dict[tuple[str, str], float]:
        metrics = super().metrics()
        return {**metrics, TOKENS: metrics[TOKENS] - self.lost}
