"""Servers that export something else than what happens."""

from __future__ import annotations

from itertools import count

from enginewire import v1 as pb
from enginewire.conformance.mutants import changed, mutant
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
        return {**super().metrics(), FINISHED: self.counters.requests_finished % 4}


@mutant("running_off", kills="MET-03")
class RunningOff(Reference):
    def metrics(self) -> dict[tuple[str, str], float]:
        return {**super().metrics(), WAITING: 0}


@mutant("requests_run_once", kills="MET-03")
class RequestsRunOnce(Reference):
    """However many choices they have."""

    def metrics(self) -> dict[tuple[str, str], float]:
        return {**super().metrics(), RUNNING: len(self.running)}


@changed(Reference.metrics, "counter_off", kills="MET-04")
def counter_off(metrics: dict[tuple[str, str], float]) -> None:
    metrics[TOKENS] -= metrics[FINISHED]
