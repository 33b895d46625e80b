from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from enginewire import v1 as pb
from enginewire.backend.commands.options import TopOptions
from enginewire.backend.commands.top_show import (
    BARS,
    METER_CELLS,
    EngineRow,
    cells_of,
    look_once,
    meter,
    screen_of,
    spark,
    table_of,
)
from tests.backend.our_processes import load_of, running
from tests.patience import PATIENCE_SECONDS
from tests.server.conftest import StartServer


def load(tokens: int = 0, life: str = "a", **fields: object) -> pb.Load:
    given = {"state": pb.ENGINE_STATE_READY, "tokens_generated": tokens, "engine_lifetime_id": life} | fields
    return pb.Load(**given)


def shown(renderable: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_rate_is_that_of_the_last_two_seconds() -> None:
    row = EngineRow("x")
    for second in range(10):
        row.take(load(tokens=100 * second), float(second))
    assert row.tokens_per_second == 100
    for second in range(10, 14):
        row.take(load(tokens=900), float(second))
    assert row.tokens_per_second == 0
    assert max(row.history) == 100


def test_a_new_life_begins_to_count_anew_and_says_what_it_serves() -> None:
    row = EngineRow("x")
    row.take(load(tokens=500), 1.0)
    assert row.needs_name
    row.name("first")
    assert not row.needs_name
    row.take(load(tokens=1000), 2.0)
    row.take(load(tokens=3, life="b"), 3.0)
    assert row.tokens_per_second == 0
    assert (row.needs_name, row.model) == (True, "first")
    row.take(pb.Load(state=pb.ENGINE_STATE_DEAD), 4.0)
    assert not row.needs_name


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_meter_has_its_width_and_shows_whatever_is_in_use(used: float, cached: float) -> None:
    parts = [len(text) for text, _ in meter(used, cached)]
    assert sum(parts) == METER_CELLS
    assert (parts[0] > 0) is (used > 0)


@given(st.lists(st.floats(0, 1e9)))
def test_a_spark_has_a_bar_per_value_and_the_largest_is_full(values: list[float]) -> None:
    bars = spark(values)
    assert len(bars) == len(values)
    if max(values, default=0) > 0:
        assert bars[values.index(max(values))] == BARS[-1]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_numbers_are_never_cut(width: int) -> None:
    row = EngineRow("unix:/a/long/way/to/the/socket/of/an/engine/of/that/length.sock")
    row.take(load(0), 0.0)
    row.take(load(123_456, running=64, waiting=1234, kv_blocks_used=3, kv_blocks_total=4), 1.0)
    row.name("a-model/of-a-long-name-with-many-words")
    (_, line) = shown(table_of([row]), width)
    for cell in ("ready", "64", "1,234", " 75%", "123,456"):
        assert cell in line
    assert "1 of 1 ready   64 running   1234 waiting   123,456 tokens/s" in shown(screen_of([row]), 200)[0]
    assert cells_of(row)["KV blocks"].plain == "■■■■■■··  75%"


async def test_one_look_as_json(engine_server: StartServer, capsys: pytest.CaptureFixture[str]) -> None:
    serving = await engine_server()
    options = TopOptions(target=(serving.server.target,), json=True)
    assert await look_once(options, Console()) == 0
    (engine,) = json.loads(capsys.readouterr().out)["engines"]
    assert (engine["state"], engine["model"], engine["running"], engine["kv_use"]) == (
        "ready",
        "mocker",
        0,
        0,
    )


async def test_an_engine_that_does_not_answer_is_a_row_and_a_failure(
    engine_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    serving = await engine_server()
    options = TopOptions(target=(serving.server.target, "unix:/nowhere/e.sock"), json=True)
    assert await look_once(options, Console()) == 1
    output = capsys.readouterr()
    assert [engine["state"] for engine in json.loads(output.out)["engines"]] == ["ready", "dead"]
    assert "/nowhere/e.sock" in output.err


async def test_an_engine_that_is_loading_has_a_state_and_no_name(
    engine_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    serving = await engine_server(is_started=False)
    assert await look_once(TopOptions(target=(serving.server.target,), json=True), Console()) == 0
    (engine,) = json.loads(capsys.readouterr().out)["engines"]
    assert (engine["state"], engine["model"]) == ("starting", "")


def test_watching_goes_on_through_a_restart_and_ctrl_c_is_no_failure(socket_folder: Path) -> None:
    path = socket_folder / "engine.sock"
    engine = [sys.executable, "-m", "enginewire.server", "--engine", "mocker", "--uds", str(path)]
    top = [sys.executable, "-m", "enginewire", "top", "--json", "--interval", "0.05"]
    with running([*top, "--target", f"unix:{path}"], stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None

        def next_life(but: set[str]) -> str:
            for line in watching.stdout or ():
                found = json.loads(line)["engines"][0]
                if found["state"] == "ready" and found["model"] and found["lifetime_id"] not in but:
                    return str(found["lifetime_id"])
            raise AssertionError("it ended")

        lives: set[str] = set()
        for _ in range(2):
            with running(engine, stderr=subprocess.DEVNULL):
                load_of(f"unix:{path}")
                lives.add(next_life(lives))
        assert len(lives) == 2
        os.kill(watching.pid, signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(PATIENCE_SECONDS) == 0
