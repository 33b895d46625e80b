"""How an engine begins to draft: what a drafted token costs here is measured before the first request.

Knows options and runners; nothing about how drafts are found.
"""

from __future__ import annotations

import logging
import time

import torch

from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.core import EngineCore
from enginewire.torch_engine.layers.device import is_far
from enginewire.torch_engine.options import SpeculativeConfig
from enginewire.torch_engine.requests.params import SamplingParams, StopRules
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.runner.batch import Runner
from enginewire.torch_engine.runner.statistics import DraftStatistics
from enginewire.torch_engine.scheduling.drafting.drafter import Drafting

ROUNDS = 8
"""The quickest counts: a machine with other work only ever makes a step slower."""
LEAST_ROWS = 8
"""Beside one: the slope over fewer is too uncertain."""
CHEAPEST_ROW, CHEAPEST_FAR_ROW = 0.05, 0.001
"""What is measured below that is noise. A GPU reads its weights for one row as fast as for many."""

DEAREST_ROW = 1000.0

log = logging.getLogger(__name__)


def start_drafting(core: EngineCore, runner: Runner, config: SpeculativeConfig, device: torch.device) -> None:
    """From now on the requests of the core get drafts. Nothing may be running."""
    most = max(config.num_speculative_tokens, LEAST_ROWS)
    num_rows = min(most, core.scheduler.pool.capacity - 2)
    times = [[_seconds(core, runner, count) for count in (1, 1 + num_rows)] for _ in range(ROUNDS)]
    one, all_rows = map(min, zip(*times, strict=True))
    cost = max(row_cost(one, all_rows, num_rows), CHEAPEST_FAR_ROW if is_far(device) else CHEAPEST_ROW)
    log.info("speculative decoding: a drafted token costs %.0f %% of a step of one token", 100 * cost)
    core.scheduler.drafting = Drafting(config.num_speculative_tokens, config.lookup, cost)
    core.statistics.drafts = DraftStatistics(config.num_speculative_tokens)


def row_cost(seconds_of_one: float, seconds_of_all: float, num_more: int) -> float:
    """What a row adds to a step, as a part of what a step takes without any.

    From the seconds of a step of one row and of one with `num_more` rows more.
    """
    row = max(seconds_of_all - seconds_of_one, 0.0) / max(num_more, 1)
    rest = seconds_of_one - row
    return row / rest if rest > 0 else DEAREST_ROW


def _seconds(core: EngineCore, runner: Runner, num_rows: int) -> float:
    """How long a step takes that computes that many tokens of one output, at its beginning."""
    pool = core.scheduler.pool
    stop = StopRules(max_total_tokens=num_rows + 2)
    request = Request(GenerateContext("drafting"), [0], SamplingParams(seed=0), stop, (0, 0.0, 0))
    sequence = Sequence(request, 0, [0])
    sequence.num_computed_tokens = 1
    sequence.block_table = pool.allocate(pool.blocks_for(num_rows + 1))
    draft = [0] * (num_rows - 1)
    grant = Scheduled(sequence, num_rows, sequence.block_table, draft)
    started = time.perf_counter()
    runner.forward([grant])
    runner.check()
    pool.free(sequence.block_table)
    return time.perf_counter() - started
