"""What `enginewire top` shows, from the load that engines report.

An engine that goes away and comes back keeps its row. Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from enginewire import v1 as pb
from enginewire.backend.commands.options import TopOptions
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.load_fields import kv_use, load_fields, state_name
from enginewire.calling.trust import trust_of

# Long enough for a steady figure, short enough to follow.
RATE_SECONDS: Final = 2.0
NUM_BARS: Final = 12
BARS: Final = " ▁▂▃▄▅▆▇█"
METER_CELLS: Final = 8
INFO_TIMEOUT_SECONDS: Final = 0.5
STYLES: Final = {"ready": "green", "draining": "yellow", "starting": "yellow"}


class EngineRow:
    """One engine over time. Times of time.monotonic."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.model = ""
        self.load = pb.Load()
        self.tokens_per_second = 0.0
        self.history: deque[float] = deque([0.0] * NUM_BARS, maxlen=NUM_BARS)
        self._samples: deque[tuple[float, int]] = deque()
        self._named_life = ""

    @property
    def needs_name(self) -> bool:
        """A life of the engine that has not said what it serves."""
        life = self.load.engine_lifetime_id
        return bool(life) and life != self._named_life

    def take(self, load: pb.Load, now: float) -> None:
        """The load at `now`."""
        if load.engine_lifetime_id != self.load.engine_lifetime_id:
            self._samples.clear()
        self.load = load
        samples = self._samples
        samples.append((now, load.tokens_generated))
        while len(samples) > 2 and samples[1][0] <= now - RATE_SECONDS:
            samples.popleft()
        seconds = samples[-1][0] - samples[0][0]
        tokens = samples[-1][1] - samples[0][1]
        self.tokens_per_second = tokens / seconds if seconds > 0 else 0.0
        self.history.append(self.tokens_per_second)

    def name(self, model: str) -> None:
        """What this life serves."""
        self.model = model
        self._named_life = self.load.engine_lifetime_id

    def fields(self) -> dict[str, object]:
        """For scripts."""
        fields = {"model": self.model, **load_fields(self.target, self.load)}
        return fields | {"kv_use": kv_use(self.load), "tokens_per_second": round(self.tokens_per_second, 3)}


async def look_once(options: TopOptions, console: Console) -> int:
    """Ask every engine; 0, or 1 when one did not answer."""
    looks = await asyncio.gather(*(_look(target, options) for target in options.target))
    rows, failures = zip(*looks, strict=True)
    if options.json:
        print(as_line(rows))
    else:
        console.print(table_of(rows))
    for failure in failures:
        if failure is not None:
            print(f"enginewire top: {failure}", file=sys.stderr)
    return int(any(failure is not None for failure in failures))


async def watch(options: TopOptions, console: Console) -> int:
    """Look again and again, until the task is cancelled."""
    async with Endpoints([_client(target, options) for target in options.target]) as engines:
        rows = [EngineRow(target) for target in options.target]
        if options.json:
            while True:
                await _look_at(engines, rows, options.interval)
                print(as_line(rows), flush=True)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen_of(rows), refresh=True)
                await _look_at(engines, rows, options.interval)


def _client(target: str, options: TopOptions) -> EngineClient:
    return EngineClient(target, trust=trust_of(options))


async def _look(target: str, options: TopOptions) -> tuple[EngineRow, RequestFailed | None]:
    row = EngineRow(target)
    async with _client(target, options) as client:
        try:
            row.take(await client.load(options.timeout), time.monotonic())
            row.name(model_of(await client.info(options.timeout)))
        except RequestFailed as failure:
            # An engine that is loading tells its state, but not yet what it serves.
            is_answer = bool(row.load.engine_lifetime_id)
            if not is_answer:
                row.take(pb.Load(state=pb.ENGINE_STATE_DEAD), time.monotonic())
            return row, None if is_answer else failure
    return row, None


async def _look_at(engines: Endpoints, rows: Sequence[EngineRow], interval: float) -> None:
    await asyncio.sleep(interval)
    now = time.monotonic()
    for row, endpoint in zip(rows, engines.all, strict=True):
        row.take(endpoint.load, now)
        if row.needs_name and endpoint.load.state == pb.ENGINE_STATE_READY:
            await _ask_name(row, endpoint)


async def _ask_name(row: EngineRow, endpoint: Endpoint) -> None:
    try:
        row.name(model_of(await endpoint.client.wait_ready(INFO_TIMEOUT_SECONDS)))
    except RequestFailed:
        # It has just gone; its next life will be asked.
        return


def model_of(info: pb.GetEngineInfoResponse) -> str:
    """What users call the model."""
    return info.config.served_model_name or info.config.model


def as_line(rows: Sequence[EngineRow]) -> str:
    """One look as a line of JSON."""
    return json.dumps({"engines": [row.fields() for row in rows]})


def screen_of(rows: Sequence[EngineRow]) -> Group:
    """The table with the sum of all engines above it."""
    loads = [row.load for row in rows]
    num_ready = sum(load.state == pb.ENGINE_STATE_READY for load in loads)
    speed = sum(row.tokens_per_second for row in rows)
    sums = Text.assemble(
        ("enginewire top", "bold"),
        f"   {num_ready} of {len(rows)} ready   {sum(load.running for load in loads)} running"
        f"   {sum(load.waiting for load in loads)} waiting   {speed:,.0f} tokens/s   ",
        ("Ctrl-C leaves", "dim"),
    )
    return Group(sums, "", table_of(rows))


def table_of(rows: Sequence[EngineRow]) -> Table:
    """A row per engine. Names are cut before numbers are."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("engine", min_width=8, max_width=44)
    table.add_column("model", min_width=5, max_width=28)
    for name in ("state", "run", "wait", "KV blocks", "tokens/s", "done", "last"):
        is_number = name in ("run", "wait", "tokens/s", "done")
        widest = max([len(name), *(cells_of(row)[name].cell_len for row in rows)])
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True, min_width=widest)
    for row in rows:
        table.add_row(*cells_of(row).values())
    return table


def cells_of(row: EngineRow) -> dict[str, Text]:
    """What the columns say about an engine."""
    load = row.load
    state = state_name(load.state)
    cached = load.kv_blocks_cached / load.kv_blocks_total if load.kv_blocks_total else 0.0
    return {
        "engine": Text(row.target, no_wrap=True, overflow="ellipsis"),
        "model": Text(row.model or "-", style="bold", no_wrap=True, overflow="ellipsis"),
        "state": Text(state, style=STYLES.get(state, "red")),
        "run": Text(f"{load.running:,}"),
        "wait": Text(f"{load.waiting:,}"),
        "KV blocks": Text.assemble(*meter(kv_use(load), cached), f"{kv_use(load):5.0%}"),
        "tokens/s": Text(f"{row.tokens_per_second:,.0f}"),
        "done": Text(f"{load.requests_finished:,}"),
        "last": Text(spark(row.history), style="green"),
    }


def meter(used: float, cached: float) -> list[tuple[str, str]]:
    """A bar of blocks in use, then of those kept for reuse. Parts from 0 to 1."""
    num_used = min(METER_CELLS, -int(-used * METER_CELLS // 1))
    num_cached = min(METER_CELLS - num_used, -int(-cached * METER_CELLS // 1))
    num_free = METER_CELLS - num_used - num_cached
    return [("■" * num_used, "green"), ("■" * num_cached, "cyan"), ("·" * num_free, "dim")]


def spark(values: Sequence[float]) -> str:
    """A bar per value, the largest one full."""
    most = max(values, default=0.0)
    if most <= 0:
        return " " * len(values)
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in values)
