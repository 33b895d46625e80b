"""What llama.cpp and the torch engine say to the same GGUF file, with random weights of many kinds."""

from __future__ import annotations

import json
import math
import shlex
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.backend.our_processes import until
from tests.openai_engine.live.conftest import PACKAGED
from tests.torch_engine.folder.test_gguf import KINDS, make_gguf, written  # noqa: F401  # fixtures
from tests.torch_engine.tiny import CoreUnderTest, greedy

START_SECONDS = 60.0
PROMPT = [17, 90, 3, 141, 55, 8, 77, 120, 33, 64]
NUM_SHOWN = 40


def likely(url: str) -> dict[int, float]:
    """Tokens that llama.cpp finds likely behind the prompt, with their log-probabilities."""
    asked = {
        "prompt": PROMPT,
        "n_predict": 1,
        "temperature": 0.0,
        "n_probs": NUM_SHOWN,
        "cache_prompt": False,
    }
    sent = urllib.request.Request(
        f"{url}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(sent, timeout=60) as answer:
        shown = json.load(answer)["completion_probabilities"][0]["top_logprobs"]
    return {each["id"]: each["logprob"] for each in shown}


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.parametrize("family", ["llama", "llama3", "qwen2", "qwen3"])
def test_the_torch_engine_finds_likely_what_llama_cpp_does(written, tmp_path: Path, family: str):  # noqa: F811
    _, file = written(family, KINDS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*shlex.split(PACKAGED), str(file), port, "1"], stdout=log, stderr=log)
    try:
        until(lambda: is_up(url), START_SECONDS)
        theirs = likely(url)
    finally:
        process.kill()
        process.wait()
    options = TorchEngineOptions(model=str(file), dtype="float32", num_kv_blocks=32, device="cpu")
    request = greedy(PROMPT, 1)
    request.output_options.logprobs = NUM_SHOWN
    engine = CoreUnderTest(load_engine(options, lambda phase, done: None))
    shown = engine.answer(request).logprobs[0]
    ours = dict(zip(shown.top_token_ids, shown.top_logprobs, strict=True))
    # llama.cpp rounds what it multiplies with such weights to 8 bits as well.
    assert sum(math.exp(ours[token]) * (ours[token] - theirs.get(token, -20.0)) for token in ours) < 0.1
