from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginewire.backend.bench.__main__ import with_every_limit
from enginewire.backend.bench.options import BenchOptions, parse_goodput
from enginewire.options import OptionError
from tests.backend.our_processes import command, running
from tests.patience import PATIENCE_SECONDS

TTFT_MS, ITL_MS = 30.0, 4.0
SPEED = f"--engine mocker --log-level error --mocker-ttft-ms {TTFT_MS} --mocker-itl-ms {ITL_MS}"
SMALL = ["--num-prompts", "8", "--input-len", "16", "--output-len", "10", "--json"]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A backend's gRPC target and base URL, over a mocker of known speed."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["--uds", f"{folder}/b.sock", "--http-port", "0", "--launch", SPEED]
    with running(command("serve", *arguments), stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if found := re.search(rb"http://\S+", line):
                break
        else:
            raise AssertionError("it did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield f"unix:{folder}/b.sock", found[0].decode()


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "enginewire", "bench", *arguments]
    return subprocess.run(argv, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS)


def figures(*arguments: str) -> dict[str, float]:
    done = bench(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def check(measured: dict[str, float]) -> None:
    """Its order of magnitude is the mocker's. What waited in a socket comes faster than it was made."""
    assert (measured["completed"], measured["failed"]) == (8, 0)
    assert measured["total_output_tokens"] == 80
    assert measured["total_input_tokens"] >= 8 * 16
    # Nothing ends before the mocker has ended it, as far as a timer may round.
    assert measured["p50_e2el_ms"] >= TTFT_MS + 9 * ITL_MS - 4
    assert measured["p50_ttft_ms"] >= TTFT_MS - 2
    assert measured["p50_ttft_ms"] <= measured["p50_e2el_ms"] <= measured["p99_e2el_ms"]
    assert measured["mean_tpot_ms"] > 0
    last = measured["mean_ttft_ms"] + 9 * measured["mean_tpot_ms"]
    assert last == pytest.approx(measured["mean_e2el_ms"])


@pytest.mark.parametrize("api", ["multiplexed", "generate"])
def test_an_engine_is_measured_both_ways(api: str) -> None:
    check(figures("--launch", SPEED, "--api", api, *SMALL))


def test_a_backend_is_measured_over_grpc(backend: tuple[str, str]) -> None:
    check(figures("--api", "backend", "--target", backend[0], *SMALL))


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_server_is_measured_over_http(backend: tuple[str, str], api: str) -> None:
    check(figures("--api", api, backend[1], *SMALL))


def test_concurrency_and_goodput_are_kept(backend: tuple[str, str]) -> None:
    limits = ["--goodput", "ttft:0.001", "e2el:60000"]
    measured = figures(backend[1], "--api", "chat", "--concurrency", "2", *SMALL, *limits)
    assert measured["max_concurrent_requests"] == 2
    assert measured["request_goodput"] == 0
    # Four rounds of two.
    assert measured["duration"] * 1000 >= 4 * (TTFT_MS + 9 * ITL_MS - 4)


def test_a_dataset_a_rate_and_a_plot(backend: tuple[str, str], tmp_path: Path) -> None:
    dataset, plot = tmp_path / "d.jsonl", tmp_path / "p.svg"
    dataset.write_text(
        '{"prompt": "abc", "max_tokens": 3}\n{"messages": [{"role": "user", "content": "x"}]}\n'
    )
    arguments = ["--dataset", str(dataset), "--rate", "200", "--num-prompts", "4", "--output-len", "5"]
    arguments += ["--save-plot", str(plot), "--goodput", "ttft:60000"]
    done = bench("--api", "backend", "--target", backend[0], *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^output tokens +16$", done.stdout, re.MULTILINE)
    assert re.search(r"^goodput, requests/s +[1-9]", done.stdout, re.MULTILINE)
    assert plot.read_text().startswith("<svg ")


def test_a_dataset_of_text_is_tokenized_for_an_engine(tmp_path: Path) -> None:
    dataset = tmp_path / "d.jsonl"
    dataset.write_text('{"prompt": "abcd"}\n')
    measured = figures("--launch", SPEED, "--dataset", str(dataset), *SMALL)
    assert measured["total_input_tokens"] == 8 * 4


def test_requests_that_fail_are_listed_and_end_with_1() -> None:
    done = bench("--launch", f"{SPEED} --max-model-len 20", "--input-len", "64", "--num-prompts", "3")
    assert done.returncode == 1
    assert re.search(r"^requests failed +3$", done.stdout, re.MULTILINE)
    assert re.search(r"^failed 3 x CONTEXT_EXCEEDED: \S", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "unix:/nowhere/e.sock", "--connect-timeout", "0.2"], "ENGINE_DEAD"),
        (["http://127.0.0.1:9", "--api", "chat"], "no list of models"),
        (["--launch", "--engine nothing"], "the engine server ended with exit code"),
        (["--launch", SPEED, "--dataset", "/nowhere/d.jsonl"], "/nowhere/d.jsonl"),
    ],
)
def test_when_there_is_nothing_to_measure_one_line_says_why(arguments: list[str], message: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 1
    last = [line for line in done.stderr.splitlines() if line.startswith("enginewire bench: ")]
    assert len(last) == 1
    assert message in last[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "given",
    [
        {"api": "chat"},
        {"api": "chat", "target": "unix:/x"},
        {"target": "http://x"},
        {"api": "backend", "launch": "x"},
        {"launch": "x", "target": "unix:/x"},
        {"goodput": ("itl:3",)},
        {"goodput": ("ttft",)},
        {"goodput": ("ttft:-1",)},
        {"goodput": ("ttft:nan",)},
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        BenchOptions(**given)


def test_limits_may_follow_one_flag() -> None:
    assert with_every_limit(["--goodput", "ttft:200", "tpot:50", "--json"]) == [
        "--goodput", "ttft:200", "--goodput", "tpot:50", "--json",
    ]  # fmt: skip
    assert parse_goodput(("ttft:200", "tpot:50 e2el:9")) == {"ttft": 200, "tpot": 50, "e2el": 9}
