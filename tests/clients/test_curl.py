"""curl, as the page types it."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.clients.asked import ANSWER, MODEL, QUESTION

CHAT = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": QUESTION, "temperature": 0, "max_tokens": 40},
    "/v1/messages": CHAT | {"max_tokens": 200},
}


def curl(*arguments: str) -> str:
    """What it prints; fails where it exits with another code than 0."""
    # Not the settings of whoever runs the tests.
    command = ["curl", "--disable", "--silent", "--show-error", "--fail", "--no-buffer", *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout


def post(url: str, body: dict[str, object]) -> str:
    return curl(url, "-H", "content-type: application/json", "-d", json.dumps(body))


@pytest.mark.parametrize("route", BODIES)
def test_answers_in_one_piece_and_as_a_stream(address: str, route: str) -> None:
    assert ANSWER in post(address + route, BODIES[route])
    streamed = post(address + route, BODIES[route] | {"stream": True})
    lines = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: {")]
    assert len(lines) > 3
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_what_the_server_says_of_itself(address: str) -> None:
    assert [model["id"] for model in json.loads(curl(f"{address}/v1/models"))["data"]] == [MODEL]
    assert curl(f"{address}/health") == ""
    assert json.loads(curl(f"{address}/version"))["version"]
