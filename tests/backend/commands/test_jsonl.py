from __future__ import annotations

import asyncio
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from enginewire.backend.commands.jsonl import answer_lines
from enginewire.backend.config import JsonlOptions
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.patience import PATIENCE_SECONDS
from tests.repository import ROOT

EXAMPLE = ROOT / "examples" / "jsonl" / "requests.jsonl"


async def run(
    backend: TextBackend, folder: Path, *lines: object, **given: object
) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and output lines. Lines are JSON values, or bytes as they are."""
    path = folder / "input"
    path.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    )
    out = io.StringIO()
    with path.open("rb") as file:
        code = await answer_lines(backend, JsonlOptions(**given), source=file.fileno(), out=out)
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def text_of(lines: list[dict[str, Any]], request_id: object, index: int = 0) -> str:
    outputs = [line["data"] for line in lines if line["id"] == request_id]
    return "".join(output["text"] for output in outputs if output["index"] == index)


async def test_every_request_is_answered_under_its_id(text_backend: TextBackend, tmp_path: Path) -> None:
    code, lines = await run(
        text_backend,
        tmp_path,
        {"id": "a", "prompt": "one"},
        {"id": 7, "messages": [{"role": "user", "content": "two"}]},
        {"token_ids": [120, 121]},
    )
    assert code == 0
    assert text_of(lines, "a") == "one"
    assert text_of(lines, 7) == "user: two\nassistant: "
    assert text_of(lines, 3) == "xy"


async def test_events_have_the_request_under_its_id(text_backend: TextBackend, tmp_path: Path) -> None:
    asked = {"id": "mine", "prompt": "hi", "annotations": ["echo:x", "formatted_prompt"]}
    code, lines = await run(text_backend, tmp_path, asked)
    assert code == 0
    assert {line["id"] for line in lines} == {"mine"}
    events = [line for line in lines if "event" in line]
    assert [(event["event"], event["comment"]) for event in events] == [
        ("formatted_prompt", ["hi"]),
        ("echo", ["x"]),
    ]
    assert "event_id" not in events[0]
    assert events[1]["event_id"]


async def test_requests_are_interleaved_and_keep_their_own_order(
    start_backend: StartBackend, tmp_path: Path
) -> None:
    backend, _ = await start_backend(mocker_itl_ms=2.0)
    prompts = ["abcdefgh" * 3, "ABCDEFGH" * 3]
    _, lines = await run(backend, tmp_path, *({"id": prompt, "prompt": prompt} for prompt in prompts))
    assert [text_of(lines, prompt) for prompt in prompts] == prompts
    ids = [line["id"] for line in lines]
    assert ids != sorted(ids)
    assert ids != sorted(ids, reverse=True)


async def test_a_line_that_is_no_request_gets_an_error_with_its_number_and_the_rest_goes_on(
    text_backend: TextBackend, tmp_path: Path
) -> None:
    code, lines = await run(
        text_backend,
        tmp_path,
        b"{nonsense",
        b"",
        b" \t",
        {"id": "x"},
        b"\xff\xfe",
        {"prompt": "y" * 2000},
        {"id": "empty", "prompt": ""},
        {"id": "good", "prompt": "ok"},
        max_line_bytes=1024,
    )
    assert code == 1
    refused = [(line["line"], line["id"], line["error"]["field"]) for line in lines if "line" in line]
    assert sorted(refused) == [
        (1, None, ""),
        (4, "x", "prompt"),
        (5, None, ""),
        (6, None, ""),
        (7, "empty", "text"),
    ]
    assert text_of([line for line in lines if "data" in line], "good") == "ok"


async def test_what_the_engine_refuses_is_an_error_of_that_request(
    text_backend: TextBackend, tmp_path: Path
) -> None:
    code, lines = await run(
        text_backend,
        tmp_path,
        {"id": 1, "prompt": "x", "sampling_options": {"temperature": -1}},
        {"id": 2, "prompt": "ok"},
    )
    assert code == 1
    error = next(line["error"] for line in lines if line["id"] == 1)
    assert (error["code"], error["reason"], error["field"], error["retryable"]) == (
        3,
        "ERROR_REASON_INVALID_REQUEST",
        "sampling_options.temperature",
        False,
    )
    assert text_of(lines, 2) == "ok"


async def test_options_are_the_defaults_of_every_line(text_backend: TextBackend, tmp_path: Path) -> None:
    _, lines = await run(
        text_backend,
        tmp_path,
        {"id": 1, "prompt": "abcdef"},
        {"id": 2, "prompt": "abcdef", "stop_conditions": {"max_tokens": 5}},
        max_tokens=3,
        stop=("f",),
    )
    assert (text_of(lines, 1), text_of(lines, 2)) == ("abc", "abcde")


async def test_no_more_requests_than_asked_for_run_at_once(
    start_backend: StartBackend, tmp_path: Path
) -> None:
    backend, serving = await start_backend(mocker_itl_ms=1.0)
    lines = [{"prompt": "x" * 20} for _ in range(12)]
    running = asyncio.create_task(run(backend, tmp_path, *lines, concurrency=3))
    most = 0
    while not running.done():
        load = await serving.load()
        most = max(most, load.running + load.waiting)
        await asyncio.sleep(0.002)
    assert running.result()[0] == 0
    assert most == 3


async def test_a_line_is_answered_before_the_input_has_ended(text_backend: TextBackend) -> None:
    reading, writing = os.pipe()
    out = io.StringIO()
    running = asyncio.create_task(answer_lines(text_backend, JsonlOptions(), source=reading, out=out))
    os.write(writing, b'{"prompt": "now"}\n')
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "finish_reason" not in out.getvalue():  # noqa: ASYNC110  # there is no event to await
            await asyncio.sleep(0.01)
    os.close(writing)
    assert await running == 0
    os.close(reading)


async def test_output_that_nobody_reads_ends_everything(start_backend: StartBackend, tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    backend, serving = await start_backend(mocker_itl_ms=5.0)
    path = tmp_path / "input"
    path.write_text('{"prompt": "a long answer"}\n' * 8)
    with path.open("rb") as file, pytest.raises(BrokenPipeError):
        await answer_lines(backend, JsonlOptions(), source=file.fileno(), out=Closed())
    await serving.until_idle()


async def test_the_example_is_answered(text_backend: TextBackend, tmp_path: Path) -> None:
    code, lines = await run(text_backend, tmp_path, *EXAMPLE.read_bytes().splitlines())
    assert code == 0
    assert {line["id"] for line in lines} == {"greeting", "completion", "two answers", "token ids"}
