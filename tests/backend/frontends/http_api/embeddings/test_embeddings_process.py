"""Both commands with a real encoder: sentences in, the similarities that its makers publish out."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from openai import BadRequestError, OpenAI

from tests.backend.frontends.http_api.test_compatibility import check
from tests.backend.frontends.http_api.test_process import address_in
from tests.long import long
from tests.patience import PATIENCE_SECONDS
from tests.torch_engine.minilm import MINILM

SENTENCES = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]


@long
def test_a_real_encoder_is_served_by_the_two_programs_as_the_table_of_fields_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "enginewire.backend", "serve", "--http-port=0", f"--uds={tmp_path}/b"]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        backend = subprocess.Popen([*command, f"--launch={MINILM} --log-level=error"], stderr=stderr)
    try:
        address = address_in(log, backend)
        with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            answer = client.embeddings.create(model=str(MINILM), input=SENTENCES)
            food, bread, baby = (each.embedding for each in answer.data)
            assert _product(food, bread) == pytest.approx(0.7553, abs=1e-3)
            assert _product(food, baby) == pytest.approx(-0.1050, abs=1e-3)
            assert answer.usage.prompt_tokens == 28
            with pytest.raises(BadRequestError, match="only embeds"):
                client.completions.create(model=str(MINILM), prompt="hello")
            with pytest.raises(BadRequestError) as caught:
                client.embeddings.create(model=str(MINILM), input=["short", "word " * 300])
            assert (caught.value.param, caught.value.code) == ("input[1]", "context_length_exceeded")
        with httpx2.Client(base_url=address, timeout=120) as client:
            check({"embeddings": client})
        backend.send_signal(signal.SIGTERM)
        assert backend.wait(PATIENCE_SECONDS) == 0
    finally:
        backend.kill()
        backend.wait()


def _product(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
